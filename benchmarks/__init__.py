"""What a decision costs, beside the least that a limiter can do and beside other limiters. Method: README.md."""
