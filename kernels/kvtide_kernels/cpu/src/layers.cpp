// A decoder's layers but their attention: what is before it, what comes behind it, and the logits.
#include "team.h"
#if defined(__AVX512BF16__)
#include "rows.h"

namespace {

// Mirrored in ../layers.py.
struct DecoderLayer {
    Linear qkv, attention_out, gate_up, down;
    Norm attention_norm, mlp_norm;
    Norm heads_norm, attention_out_norm, mlp_out_norm;  // scale null: none
    const Linear* next;                                 // whose weights are read next
    int32_t query_heads, kv_heads, head_dim, gate;
};

// bfloat16 [rows][...] each.
struct Buffers {
    int64_t rows;
    uint16_t *hidden, *normed, *wide, *gated;  // wide: what qkv gives, and gate_up
    uint16_t *query, *key, *value, *attended;
    const uint16_t *cos, *sin;
    int32_t rotated;  // elements of a head
};

// A thread's way through the phases.
class Together {
  public:
    Together(int share, int shares, Phase* phases) : share_(share), shares_(shares), phase_(phases) {}

    template <class Work>
    void rows(int64_t count, Work&& work) {
        (phase_++)->run(count, share_, shares_, [&](int64_t row, int64_t) { work(row); });
    }

    // y = linear(x), of rows that it has taken. next: what is read when this is done, or null.
    void linear(const Linear& linear, const uint16_t* x, int64_t rows, uint16_t* y, const Linear* next) {
        const int panels = linear.panels();
        const int64_t blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
        const Linear& soon = next ? *next : linear;
        const uint8_t* then = soon.panel(int(Phase::first_of(soon.panels(), share_, shares_)));
        (phase_++)->run(blocks * panels, share_, shares_, [&](int64_t piece, int64_t following) {
            const int64_t first = piece / panels * ROW_BLOCK;
            const int some = int(std::min<int64_t>(ROW_BLOCK, rows - first));
            multiply_panel(linear, int(piece % panels), x + first * linear.inputs, some, y + first * linear.outputs,
                           following < 0 ? then : linear.panel(int(following % panels)));
        });
    }

  private:
    int share_, shares_;
    Phase* phase_;
};

void before(const DecoderLayer& layer, const Buffers& buffers, Together team) {
    const int64_t rows = buffers.rows;
    const int hidden = layer.attention_norm.size, dim = layer.head_dim;
    const int q_heads = layer.query_heads, kv_heads = layer.kv_heads;
    team.rows(rows, [&](int64_t row) {
        uint16_t* normed = buffers.normed + row * hidden;
        layer.attention_norm.run(buffers.hidden + row * hidden, normed);
        layer.qkv.take(normed);
    });
    team.linear(layer.qkv, buffers.normed, rows, buffers.wide, &layer.attention_out);
    team.rows(rows, [&](int64_t row) {
        uint16_t* heads = buffers.wide + row * layer.qkv.outputs;
        const uint16_t *cos = buffers.cos + row * buffers.rotated, *sin = buffers.sin + row * buffers.rotated;
        for (int head = 0; head < q_heads + kv_heads; ++head) {
            uint16_t* from = heads + head * dim;
            uint16_t* to = head < q_heads ? buffers.query + (row * q_heads + head) * dim
                                          : buffers.key + (row * kv_heads + head - q_heads) * dim;
            if (layer.heads_norm.scale) layer.heads_norm.run(from, from, head);
            rotate_head(from, to, dim, buffers.rotated, cos, sin);
        }
        std::memcpy(buffers.value + row * kv_heads * dim, heads + (q_heads + kv_heads) * dim, 2 * kv_heads * dim);
    });
}

void after(const DecoderLayer& layer, const Buffers& buffers, Together team) {
    const int64_t rows = buffers.rows;
    const int hidden = layer.mlp_norm.size, gated = layer.down.inputs;
    // What goes back to the residual, in `wide` for lack of a place of its own.
    const auto add = [&](int64_t row, const Norm& norm) {
        uint16_t* more = buffers.wide + row * hidden;
        if (norm.scale) norm.run(more, more);
        add_row(more, buffers.hidden + row * hidden, hidden);
    };
    const Linear& back = layer.attention_out;
    if (back.scales) team.rows(rows, [&](int64_t row) { back.take(buffers.attended + row * back.inputs); });
    team.linear(back, buffers.attended, rows, buffers.wide, &layer.gate_up);
    team.rows(rows, [&](int64_t row) {
        add(row, layer.attention_out_norm);
        uint16_t* normed = buffers.normed + row * hidden;
        layer.mlp_norm.run(buffers.hidden + row * hidden, normed);
        layer.gate_up.take(normed);
    });
    team.linear(layer.gate_up, buffers.normed, rows, buffers.wide, &layer.down);
    team.rows(rows, [&](int64_t row) {
        const uint16_t* from = buffers.wide + row * 2 * gated;
        uint16_t* to = buffers.gated + row * gated;
        layer.gate == SILU ? gate_row<SILU>(from, to, gated) : gate_row<GELU_TANH>(from, to, gated);
        layer.down.take(to);
    });
    team.linear(layer.down, buffers.gated, rows, buffers.wide, layer.next);
    team.rows(rows, [&](int64_t row) { add(row, layer.mlp_out_norm); });
}

template <class Body>
void with_team(int phases, int threads, Parallel parallel, Body&& body) {
    std::vector<Phase> all(phases);
    in_parallel(threads, parallel, [&](int share, int shares) { body(Together(share, shares, all.data())); });
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// hidden to query, key and value.
void kvtide_before_attention(const DecoderLayer* layer, const Buffers* buffers, int threads, Parallel parallel) {
    with_team(3, threads, parallel, [&](Together team) { before(*layer, *buffers, team); });
}

// attended, which is worth nothing afterwards, into hidden, and through the MLP.
void kvtide_after_attention(const DecoderLayer* layer, const Buffers* buffers, int threads, Parallel parallel) {
    with_team(7, threads, parallel, [&](Together team) { after(*layer, *buffers, team); });
}

// to = linear(norm(from)); norm null: of from itself. taken: as long as from; null where neither norm nor weights in INT8
// need it.
void kvtide_linear(const Linear* linear, const Norm* norm, const uint16_t* from, int64_t rows, uint16_t* taken,
                   uint16_t* to, int threads, Parallel parallel) {
    with_team(2, threads, parallel, [&](Together team) {
        const int size = linear->inputs;
        if (taken)
            team.rows(rows, [&](int64_t row) {
                if (norm) norm->run(from + row * size, taken + row * size);
                else std::memcpy(taken + row * size, from + row * size, 2 * size);
                linear->take(taken + row * size);
            });
        team.linear(*linear, taken ? taken : from, rows, to, nullptr);
    });
}
}
#pragma GCC visibility pop
#endif
