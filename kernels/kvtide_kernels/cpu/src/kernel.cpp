// What the library exports. One library is built for each instruction set: code of two must not meet in one, where the
// linker would take either's copy of an inline function.
#include <memory>

#include "attend.h"
#include "move.h"
#include "team.h"

namespace {

struct Work {
    const Step* step;
    std::atomic<int64_t> next{0};
};

// Every thread takes the next piece that nobody has: cores that others use too get fewer. Heads come one after another,
// as they lie beside each other in a block.
void take(Work& work) {
    thread_local const auto scratch = std::make_unique<Scratch>();
    const Step& step = *work.step;
    const int64_t heads = step.layer->kv_heads;
    Attend attend(step, *scratch);
    for (int64_t i; (i = work.next.fetch_add(1, std::memory_order_relaxed)) < step.num_units * heads;)
        attend.run(step.units[i / heads], int(i % heads));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void kvtide_run(const Step* step, int threads, Parallel parallel) {
    Work work{step};
    const int64_t pieces = step->num_units * step->layer->kv_heads;
    in_parallel(int(std::min<int64_t>(threads, pieces)), parallel, [&](int, int) { take(work); });
}

void kvtide_reencode(const Side* from, const Side* to, int block_size, int kv_heads, int64_t num_blocks) {
    reencode_blocks(*from, *to, block_size, kv_heads, num_blocks);
}

// The best of the instruction sets that libraries are built for and this processor has.
const char* kvtide_best() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return "avx512";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
#endif
    return "plain";
}
}
#pragma GCC visibility pop
