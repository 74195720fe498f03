from hypothesis import settings

# The duration of an example means nothing while other tests run on the same machine.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
