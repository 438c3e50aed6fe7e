"""A second, naive engine: a kernel of a few CTAs in plain floats and loops, sharing no code with `sim`. For bf16, tn,
wgmma, no clusters, whole k-iterations, an L2 that holds everything, one GPC, no jitter, tiles known beforehand."""

import math
from collections import Counter


def naive(gemm, config, gpu, mhz):
    """(seconds inside its CTAs, bytes by level) of one kernel; `config.n_ctas` CTAs take its tiles in turn."""
    tma, pingpong, l2, hbm, smem = config.loads == "tma", config.pingpong, gpu.l2, gpu.hbm, gpu.smem
    family, depth = (gpu.persistent, config.stages) if tma else (gpu.multistage, max(1, config.stages - 1))
    block, extent = {"a": config.block_m, "b": config.block_n}, {"a": gemm.m, "b": gemm.n}
    row_bytes, staged_bytes = config.block_k * 2, 2 * config.block_m * config.block_n * 2  # 2 B, 2 FLOPs; C: in, out
    stage_bytes, flops = (config.block_m + config.block_n) * row_bytes, config.block_m * config.block_n * row_bytes
    serial = 0 if tma or config.warps == 4 or config.block_n != 256 else family.serial_cycles  # a warp stores 256 of C
    half_l2, gpc = (rate * gpu.clock.boost_mhz / mhz for rate in (l2.bytes_per_clk / 2, l2.gpc_port_bytes_per_clk))
    free, moved, in_l2, under_way = Counter(), Counter(), {}, {}  # in L2 from when; being served until when
    n_k, sums_bytes, summed = gemm.k // config.block_k, block["a"] * block["b"] * 4, {}  # sums in L2 from when

    def serve(server, t, cycles):
        """First come, first served: when `server`, asked at t for `cycles` of its time, is done."""
        free[server] = max(t, free[server]) + cycles
        return free[server]

    wide = "a" if gemm.m >= gemm.n else "b"
    at_once = row_bytes * (depth if tma else 1)  # of a row; of a ring, what it fills ahead
    together = min(block[wide], extent[wide]) if at_once >= gemm.k * 2 else 1  # rows, one behind the other
    run_bytes = min(at_once, gemm.k * 2) * together

    def load(operand, tile, k, t):
        """One chunk asked for at t: when its last line reaches the GPC."""
        key, latency, asked = (operand, tile, k), l2.latency_cycles, block[operand] * row_bytes  # past the edge, too
        filled = min(asked, (extent[operand] - tile * block[operand]) * row_bytes)
        if t < under_way.get(key, (0, 0))[0]:
            moved["coalesced"] += asked
            return under_way[key][1]
        arrival = in_l2.get(key, t)
        if gemm.l2 == "cold" and key not in in_l2:  # half of it comes from the far partition
            ns = filled / hbm.bandwidth_gb_per_s / hbm.read_fraction
            ns *= 1 + hbm.row_open_bytes / run_bytes
            slowest_ns = hbm.latency_ns + hbm.spread_ns * math.log2(max(1, asked / l2.line_bytes))
            in_l2[key] = arrival = serve("hbm", t, ns * mhz / 1e3) + slowest_ns * mhz / 1e3
            moved["hbm"], latency = moved["hbm"] + filled, latency + l2.far_latency_cycles
            serve("far", t, filled / 2 / half_l2)
        moved["l2"] += asked
        served = max(serve("near", t, asked / half_l2), serve("gpc", t, asked / gpc))
        under_way[key] = max(t, arrival) + gpu.coalescing.window_cycles, max(served, arrival) + latency
        return under_way[key][1]

    def issue(cta, job, k, t):
        """Loads of one k-iteration issued at t: when the stage is ready."""
        data = max(load("a", job[0][0], k, t), load("b", job[0][1], k, t))
        moved["sm"] += stage_bytes
        serve(("smem", cta), t, 0 if tma else stage_bytes / smem.bytes_per_clk)
        moving = stage_bytes / l2.sm_port_bytes_per_clk
        return max(data + moving, serve(("port", cta), t, moving) + l2.latency_cycles) + family.load_cycles

    def mma(cta, t):
        """Tensor cores and operand reads of one k-iteration from t: when its results are in."""
        c = pingpong * staged_bytes * config.block_k / gemm.k  # of the warpgroup in its epilogue
        read = serve(
            ("smem", cta), t, (config.block_m * row_bytes * (1 + config.block_n / 64) + c) / smem.bytes_per_clk
        )
        end = max(read, serve(("tensor", cta), t, flops / gpu.tensor.bf16_flops_per_clk_per_sm))
        end += family.drain_cycles + serial
        return max(end, t + family.iteration_cycles) if tma else end

    def store(cta, tile, t, last):
        """C of one tile, written from t through both partitions: when the consumer is done with it."""
        half_bytes = math.prod(min(block[x], extent[x] - i * block[x]) for x, i in zip("ab", tile, strict=True))
        moved["c"] += 2 * half_bytes
        cost = half_bytes * l2.write_weight * (family.store_weight if tma else 1)
        ends = [serve(side, t, cost / half_l2) for side in ("near", "far")]
        ends += [serve(("smem", cta), t, 0 if pingpong else staged_bytes / smem.bytes_per_clk)]
        before, after = (0, family.epilogue_cycles * last) if tma else (family.epilogue_cycles, 0)
        return max(*ends, serve(("out", cta), t + before, 2 * half_bytes / l2.sm_store_bytes_per_clk)) + after

    def leave(cta, tile, last_k, t):
        """Sums of a part of a tile, in fp32, written from t through both partitions: when all have left the SM."""
        moved["c"] += sums_bytes
        cost = sums_bytes / 2 * l2.write_weight * family.store_weight / half_l2
        ends = [serve(side, t, cost) for side in ("near", "far")]
        summed[tile, last_k] = max(*ends, serve(("out", cta), t, sums_bytes / l2.sm_store_bytes_per_clk))
        return summed[tile, last_k]

    def take(cta, t):
        """Sums of a tile's other parts read from t, half of them from the far partition: when they are in registers."""
        moved["l2"], moved["sm"] = moved["l2"] + sums_bytes, moved["sm"] + sums_bytes
        serve("far", t, sums_bytes / 2 / half_l2)
        served = max(serve("near", t, sums_bytes / half_l2), serve("gpc", t, sums_bytes / gpc))
        moving = sums_bytes / l2.sm_port_bytes_per_clk
        data = served + l2.latency_cycles + l2.far_latency_cycles
        return max(data + moving, serve(("port", cta), t, moving) + l2.latency_cycles)

    def walk(cta, jobs):
        """One CTA: wait for a stage, multiply, load into it again; after the last k, store. Yields its next request."""
        loads = [(job, k) for job in jobs for k in range(*job[1:])]
        issue_cycles, barrier = (0, 0) if tma else (stage_bytes / family.issue_bytes_per_clk, family.barrier_cycles)
        barrier += 0 if tma else family.barrier_warp_cycles * (config.warps - 4)
        yield (t := family.start_cycles if tma else family.cta_start_cycles)
        begun, ready, stored, issued, spacing = t, [], [0, 0], t, family.iteration_cycles if tma else 0

        def until(end, j):
            """What a ring that is not full yet asks for in time before `end`; then that."""
            while spacing and len(ready) < min(j + depth, len(loads)) and begun + len(ready) * spacing < end:
                yield (due := begun + len(ready) * spacing)
                ready.append(issue(cta, *loads[len(ready)], due))
            yield end

        for j, (job, _) in enumerate([*loads, (None, 0)]):
            spacing *= len(ready) < j - 1 + depth  # cycles between stages, until a TMA ring is full
            while len(ready) < min(j + depth, len(loads)) and (begun + len(ready) * spacing <= t or len(ready) == j):
                ready.append(issue(cta, *loads[len(ready)], max(t, issued)))
                issued = max(t, issued) + issue_cycles
            if j and loads[j - 1][0] != job:
                tile, first, last = loads[j - 1][0]
                if last - first < n_k:  # a part of a tile
                    yield t
                    while first and summed.get((tile, first), math.inf) > t:
                        yield from until(t := t + l2.latency_cycles, j)
                    yield from until(t := take(cta, t) if last == n_k else leave(cta, tile, last, t), j)
                if last == n_k:
                    stored = [store(cta, tile, t, not job), stored[0]]
                    t = max(t, stored[1]) if pingpong and job else max(stored)
            elif j:
                t = max(t, issued)
            for multiplies in (False, True):  # before, it waits
                t = t if not job else mma(cta, t) if multiplies else max(t + barrier, ready[j])
                yield from until(t, j)

    tiles = [(row, col) for row in range(-(-gemm.m // config.block_m)) for col in range(-(-gemm.n // config.block_n))]
    ctas = [walk(cta, jobs) for cta, jobs in enumerate(dealt(tiles, n_k, config)) if jobs]
    events = [(next(cta), i) for i, cta in enumerate(ctas)]
    while events:
        last, i = events.pop(events.index(min(events)))
        events += [(t, i) for t in [next(ctas[i], None)] if t is not None]
    return last / mhz / 1e6, moved


def dealt(tiles, n_k, config):
    """What each CTA does, [(tile, first k, last k + 1)] in order. Stream-K is for tiles in one row."""
    n, n_whole = config.n_ctas, max(0, len(tiles) // config.n_ctas - 1) * config.n_ctas
    iterations = [(tile, k) for tile in tiles[: len(tiles) - n_whole] for k in range(n_k)]
    n_runs = min(n, len(iterations) // 8) if config.stream_k else 0
    if not n_runs:
        return [[(tile, 0, n_k) for tile in tiles[cta::n]] for cta in range(n)]
    ctas, end = [], 0
    for run in range(n):
        begin, ctas = end, [*ctas, []]
        end = sum(len(iterations[i::n_runs]) for i in range(run + 1)) if run < n_runs else len(iterations)
        end -= end % n_k if end % n_k < 8 else end % n_k - n_k if end % n_k > n_k - 8 else 0  # to the border of a tile
        for tile in reversed(tiles):
            ks = [k for of, k in iterations[begin:end] if of == tile]
            ctas[run] += [(tile, ks[0], ks[-1] + 1)] if ks else []
    for i, tile in enumerate(tiles[len(tiles) - n_whole :], n_runs):
        ctas[i % n].append((tile, 0, n_k))
    return ctas
