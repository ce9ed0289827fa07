"""A shop that gives away coupons: an example of a site behind `ratelimit_app`."""
