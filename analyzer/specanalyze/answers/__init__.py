"""The questions a user asks, each one public function over the attribution."""
