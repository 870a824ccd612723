#!/usr/bin/env python3
"""Between the tokens of eight streams while long prompts arrive: two groups that do both, beside one that computes long prompts
and one that generates, in turns.

usage: bench_disaggregation.py MODEL [ROUNDS [LENGTH]]     MODEL: a folder; LENGTH: tokens of a long prompt [4096]"""
import statistics
import sys
import threading

from bench_support import THREADS, at_once, gaps_s, in_turns, percentile, post, ratio, servers, stream, token_ids, vocabulary_of

STREAMS, PROMPT, LONG_PROMPTS, MOST_TOKENS = 8, 64, 4, 1900


def main():
    model = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    length = int(sys.argv[3]) if len(sys.argv) > 3 else 4096
    vocabulary, seeds = vocabulary_of(model), iter(range(1 << 30))

    def p99_ms(server):
        """Two long prompts at a time; the streams go on until the last one is done."""
        done, begun = threading.Event(), threading.Barrier(STREAMS + 1)

        def watch(number):
            events = []
            prompt = token_ids(number, PROMPT, vocabulary)

            def stop():
                events.append(None)
                if len(events) == 8:
                    begun.wait()
                return done.is_set()
            return stream(server, {"prompt": prompt, "max_tokens": MOST_TOKENS}, stop)[8:]

        def send_long(_):
            begun.wait()
            for _ in range(LONG_PROMPTS // 2):
                at_once(lambda seed: post(server, {"prompt": token_ids(seed, length, vocabulary), "max_tokens": 2}),
                        [next(seeds), next(seeds)])
            done.set()
            return []
        found, _ = at_once(lambda number: send_long(number) if number < 0 else watch(number), range(-1, STREAMS))
        return 1000 * percentile([gap for events in found for gap in gaps_s(events)], 0.99)
    common = (model, "--data-parallel-size", "2", "--threads", str(max(THREADS // 2, 1)), "--max-model-len",
              str(max(MOST_TOKENS + PROMPT, length + 2) + 1))
    roles = ("--group-roles", "prefill", "--group-roles", "decode", "--disaggregation-threshold", "256")
    with servers(joint=common, apart=(*common, *roles)) as each:
        found = in_turns(rounds, {name: lambda s=server: p99_ms(s) for name, server in each.items()})
    for name, values in found.items():
        print(f"{name:6} p99 between tokens {statistics.median(values):8.1f} ms (of each round: "
              f"{', '.join(f'{value:.1f}' for value in values)})")
    print(f"prefill apart from decode by joint: {ratio(found, 'apart', 'joint'):.3f}")


if __name__ == "__main__":
    main()
