"""`speccollect request`: one recorded request to a running server."""
