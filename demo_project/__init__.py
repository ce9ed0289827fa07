"""The demo: a coupon shop that runs a flash sale behind `ratelimit_app`."""
