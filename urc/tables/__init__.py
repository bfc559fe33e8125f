"""Array structures that know nothing of caches: fixed capacity, immutable, usable under any transformation."""
