from hypothesis import settings

# How long an example takes says nothing on a machine that is busy with other tests.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
