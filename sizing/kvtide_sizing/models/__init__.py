"""From a name, a configuration or a file's header to a `ModelShape`.

Reads headers, never weights; only `hub` touches the network. It knows nothing of devices and plans.
"""
