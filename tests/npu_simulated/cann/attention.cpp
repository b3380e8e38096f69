// Stands for the fused attention of CANN's libopapi, in layout TND: packed sequences.
//
// Forward keeps the maximum and the sum of each row's softmax, backward computes from them. What the
// documents of torch_npu.npu_fusion_attention refuse is refused here: their limits, and a mask that is
// not the compressed one.
//
// Shapes: Q tokens of the queries of a sequence, K of its keys, N heads.
#include "descriptors.h"

namespace {

using Ends = std::vector<int64_t>;

struct Attention {
  at::Tensor query, key, value, mask;
  Ends query_ends, key_ends;
  double scale;
  int64_t heads, mode;
  void judge(const std::string& layout, double keep) const;
  void forward(at::Tensor most, at::Tensor sum, at::Tensor out) const;
  void backward(at::Tensor dmixed, at::Tensor most, at::Tensor sum, at::Tensor mixed, at::Tensor dquery,
                at::Tensor dkey, at::Tensor dvalue) const;

 private:
  struct Part {
    int64_t query, queries, key, keys;
  };
  std::vector<Part> parts() const;
  at::Tensor wide(const at::Tensor& tokens, int64_t start, int64_t count) const;
  at::Tensor scores(const Part& part) const;
};

void judge_ends(const Ends& ends, int64_t tokens) {
  TORCH_CHECK(!ends.empty() && ends.size() <= 1024, "layout TND takes 1 to 1024 sequences, not ", ends.size());
  TORCH_CHECK(std::is_sorted(ends.begin(), ends.end()) && ends.back() == tokens,
              "ends of sequences must rise to the number of tokens, ", tokens);
}

void Attention::judge(const std::string& layout, double keep) const {
  TORCH_CHECK(layout == "TND" && keep == 1.0, "only layout TND and no dropout, not ", layout, " and ", keep);
  TORCH_CHECK(query.dim() == 3 && key.sizes() == value.sizes(), "keys and values must have one shape");
  TORCH_CHECK(query.size(2) == key.size(2) && query.size(2) <= 768, "head width ", query.size(2), " above 768");
  TORCH_CHECK(query.size(1) == heads && heads % key.size(1) == 0, heads, " heads of queries, ", key.size(1), " of keys");
  const auto type = query.scalar_type();
  TORCH_CHECK(type == at::kBFloat16 || type == at::kHalf || type == at::kFloat, "type ", type);
  TORCH_CHECK(key.scalar_type() == type && value.scalar_type() == type, "queries, keys and values of several types");
  TORCH_CHECK(query_ends.size() == key_ends.size(), "queries and keys of different numbers of sequences");
  judge_ends(query_ends, query.size(0));
  judge_ends(key_ends, key.size(0));
  TORCH_CHECK(mode == 0 || mode == 2 || mode == 3, "sparse_mode ", mode, " is not simulated");
  if (mode == 0) {
    TORCH_CHECK(!mask.defined(), "sparse_mode 0 with a mask is not simulated");
    return;
  }
  TORCH_CHECK(mask.defined() && mask.dim() == 2 && mask.size(0) == 2048 && mask.size(1) == 2048,
              "sparse_mode ", mode, " takes the compressed mask of 2048 x 2048");
}

std::vector<Attention::Part> Attention::parts() const {
  static const at::Tensor compressed = at::ones({2048, 2048}, at::kBool).triu(1);
  TORCH_CHECK(mode == 0 || mask.to(at::kBool).equal(compressed), "the mask is not the compressed one");
  std::vector<Part> found;
  int64_t query_start = 0, key_start = 0;
  for (size_t at = 0; at < query_ends.size(); at++) {
    found.push_back({query_start, query_ends[at] - query_start, key_start, key_ends[at] - key_start});
    query_start = query_ends[at];
    key_start = key_ends[at];
  }
  return found;
}

// float [N, tokens, width] of some tokens; each head of keys or values stands for its group of queries.
at::Tensor Attention::wide(const at::Tensor& tokens, int64_t start, int64_t count) const {
  return tokens.narrow(0, start, count).transpose(0, 1).to(at::kFloat).repeat_interleave(heads / tokens.size(1), 0);
}

at::Tensor Attention::scores(const Part& part) const {
  const auto Q = wide(query, part.query, part.queries), K = wide(key, part.key, part.keys);
  const auto all = at::matmul(Q, K.transpose(1, 2)) * scale;
  if (mode == 0) return all;
  const int64_t corner = mode == 3 ? part.keys - part.queries + 1 : 1;
  return all.masked_fill(at::ones({part.queries, part.keys}, at::kBool).triu(corner), -1e30);
}

void Attention::forward(at::Tensor most, at::Tensor sum, at::Tensor out) const {
  for (const Part& part : parts()) {
    const auto S = scores(part);
    const auto m = S.amax(-1, true);
    const auto e = (S - m).exp();
    const auto z = e.sum(-1, true);
    out.narrow(0, part.query, part.queries)
        .copy_(at::matmul(e / z, wide(value, part.key, part.keys)).transpose(0, 1));
    most.narrow(0, part.query, part.queries).copy_(m.transpose(0, 1).expand({part.queries, heads, 8}));
    sum.narrow(0, part.query, part.queries).copy_(z.transpose(0, 1).expand({part.queries, heads, 8}));
  }
}

// The result and the softmax may be those of queries that saw further keys too.
void Attention::backward(at::Tensor dmixed, at::Tensor most, at::Tensor sum, at::Tensor mixed, at::Tensor dquery,
                         at::Tensor dkey, at::Tensor dvalue) const {
  const int64_t groups = key.size(1);
  for (const Part& part : parts()) {
    auto kept = [&](const at::Tensor& all) {
      return all.narrow(0, part.query, part.queries).select(2, 0).transpose(0, 1).unsqueeze(-1);
    };
    auto folded = [&](const at::Tensor& each) {
      return each.reshape({groups, heads / groups, part.keys, -1}).sum(1).transpose(0, 1);
    };
    const auto P = (scores(part) - kept(most)).exp() / kept(sum);
    const auto dO = wide(dmixed, part.query, part.queries);
    const auto dP = at::matmul(dO, wide(value, part.key, part.keys).transpose(1, 2));
    const auto dS = P * (dP - (dO * wide(mixed, part.query, part.queries)).sum(-1, true)) * scale;
    const auto Q = wide(query, part.query, part.queries), K = wide(key, part.key, part.keys);
    dquery.narrow(0, part.query, part.queries).copy_(at::matmul(dS, K).transpose(0, 1));
    dkey.narrow(0, part.key, part.keys).copy_(folded(at::matmul(dS.transpose(1, 2), Q)));
    dvalue.narrow(0, part.key, part.keys).copy_(folded(at::matmul(P.transpose(1, 2), dO)));
  }
}

Attention attention(const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* mask,
                    const aclIntArray* query_ends, const aclIntArray* key_ends, double scale, double keep,
                    int64_t heads, const char* layout, int64_t mode) {
  TORCH_CHECK(query_ends && key_ends, "layout TND takes the ends of the sequences");
  Attention made{query->host(), key->host(), value->host(), mask ? mask->host() : at::Tensor(),
                 query_ends->values, key_ends->values, scale, heads, mode};
  made.judge(layout, keep);
  return made;
}

}  // namespace

extern "C" {

ACLNN(aclnnFlashAttentionVarLenScore,
      (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor*, const aclTensor*,
       const aclTensor*, const aclTensor* mask, const aclIntArray*, const aclIntArray* query_ends,
       const aclIntArray* key_ends, double scale, double keep, int64_t, int64_t, int64_t heads, char* layout, int64_t,
       int64_t mode, const aclTensor* most, const aclTensor* sum, const aclTensor*, const aclTensor* out),
      [all = attention(query, key, value, mask, query_ends, key_ends, scale, keep, heads, layout, mode),
       most = most->host(), sum = sum->host(), out = out->host()] { all.forward(most, sum, out); })

ACLNN(aclnnFlashAttentionUnpaddingScoreGrad,
      (const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* dmixed, const aclTensor*,
       const aclTensor*, const aclTensor*, const aclTensor* mask, const aclTensor* most, const aclTensor* sum,
       const aclTensor*, const aclTensor* mixed, const aclIntArray*, const aclIntArray* query_ends,
       const aclIntArray* key_ends, double scale, double keep, int64_t, int64_t, int64_t heads, char* layout, int64_t,
       int64_t mode, const aclTensor* dquery, const aclTensor* dkey, const aclTensor* dvalue, const aclTensor*),
      [all = attention(query, key, value, mask, query_ends, key_ends, scale, keep, heads, layout, mode),
       dmixed = dmixed->host(), most = most->host(), sum = sum->host(), mixed = mixed->host(), dquery = dquery->host(),
       dkey = dkey->host(), dvalue = dvalue->host()] { all.backward(dmixed, most, sum, mixed, dquery, dkey, dvalue); })
}
