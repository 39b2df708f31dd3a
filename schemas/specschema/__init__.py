"""The trace format shared by the collector (speccollect) and the analyzer (specanalyze). Depends on pyarrow alone."""
