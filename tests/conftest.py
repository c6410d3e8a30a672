"""Settings that every test shares."""

from hypothesis import settings

# A busy machine is slow now and then; how long an example takes is for the benchmarks to say.
settings.register_profile("sternpost", deadline=None)
settings.load_profile("sternpost")
