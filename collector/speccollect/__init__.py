"""Records a speculative worker from inside its server. Costs nothing until armed, and never breaks serving."""
