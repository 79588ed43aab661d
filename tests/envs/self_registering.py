from __future__ import annotations

import gymnasium

gymnasium.register("EbrlRegistersItself-v0", entry_point="self_truncating:CutsItself", max_episode_steps=5)
