"""What an env step costs alone: one process, random actions, resets included."""

from __future__ import annotations

import time

from ebrl.bench.peer_programs.tasks import make_env, read_request, say

_ACTIONS = 4096


def main() -> None:
    """Measure CPU time per env step."""
    request = read_request()
    env = make_env(request, request.seed)
    env.action_space.seed(request.seed)
    actions = [env.action_space.sample() for _ in range(_ACTIONS)]  # beforehand: drawing them is no env step
    env.reset(seed=request.seed)
    steps, begun, used = 0, time.monotonic(), time.process_time()
    while steps % request.max_episode_steps or time.monotonic() - begun < request.window_s:
        *_, terminated, truncated, _ = env.step(actions[steps % _ACTIONS])
        steps += 1
        if terminated or truncated:
            env.reset()
    say({"env_steps": steps, "cpu_s": time.process_time() - used})


if __name__ == "__main__":
    main()
