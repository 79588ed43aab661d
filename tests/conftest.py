"""One hypothesis profile for everybody: the same examples everywhere, and no race against a clock."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("ci"), derandomize=False, max_examples=2000)
settings.register_profile("first", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("ci")
