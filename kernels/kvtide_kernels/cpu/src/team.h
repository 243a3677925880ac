// Threads that go through a layer's phases together: each phase is pieces of work, and begins when the last is done.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

// libgomp's entry to a parallel region. Torch's own library is handed over, so that both share its threads.
using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
};

inline void relax(int& spins) {
    if (++spins % 512 == 0) std::this_thread::yield();
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#endif
}

// The pieces of a phase lie in shares. A thread takes those of its own share one after another, which is what memory
// likes, and then what others have left: cores that others use too get fewer. Nothing depends on how many come.
class Phase {
  public:
    static constexpr int MOST_SHARES = 16;

    // work(piece, next): next is the piece that will probably follow, or -1.
    template <class Work>
    void run(int64_t pieces, int share, int shares, Work&& work) {
        int64_t mine = 0;
        for (int i = 0; i < shares; ++i) {
            const int own = (share + i) % shares;
            const int64_t first = first_of(pieces, own, shares), end = first_of(pieces, own + 1, shares);
            for (int64_t piece; (piece = first + take(own)) < end; ++mine)
                work(piece, piece + 1 < end ? piece + 1 : -1);
        }
        done_.value.fetch_add(mine, std::memory_order_acq_rel);
        for (int spins = 0; done_.value.load(std::memory_order_acquire) < pieces;) relax(spins);
    }

    static int64_t first_of(int64_t pieces, int share, int shares) { return pieces * share / shares; }

  private:
    int64_t take(int share) { return taken_[share].value.fetch_add(1, std::memory_order_relaxed); }

    Counter taken_[MOST_SHARES], done_;
};

// body(share) on each of so many threads.
template <class Body>
void in_parallel(int threads, Parallel parallel, Body&& body) {
    struct Team {
        Body& body;
        std::atomic<int> next{0};
        int shares;
    } team{body, {0}, std::min(threads, Phase::MOST_SHARES)};
    const auto join = [](void* data) {
        auto& all = *static_cast<Team*>(data);
        all.body(all.next.fetch_add(1, std::memory_order_relaxed) % all.shares, all.shares);
    };
    if (threads <= 1) return join(&team);
    if (parallel) return parallel(join, &team, unsigned(threads), 0);
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(+join, &team);
    join(&team);
    for (auto& other : others) other.join();
}

}  // namespace
