"""Where the work on single ranks is done: in this process, in processes of this machine, or as tasks of a Ray cluster.

An analysis names one function of one rank and puts its small results together; ``each_rank`` says where it runs.
"""
