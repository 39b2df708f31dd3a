"""``python -m speccollect.nodemap_check``: the node map against what this machine's GPU, driver and torch do."""
