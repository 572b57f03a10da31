"""What a norm launches, told ahead of any call: launches by formulas of sizes, and files that hold them."""
