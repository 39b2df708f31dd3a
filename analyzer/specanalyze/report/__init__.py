"""``report``: one self-contained HTML page with the plots, made of aggregates, that works offline."""
