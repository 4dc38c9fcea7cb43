// Runs every rung under emulation, compares it with float64, and prints its counters, one line of JSON each.
#include <cstdio>
#include <random>
#include <vector>

#include "ladder.cu"

using namespace mosaic;

namespace {

constexpr int kColumns = ladder::kColumns;

template <class T>
struct Memory : std::vector<T> {
  explicit Memory(size_t n) : std::vector<T>(n) { emulated::deviceMemory().add(this->data(), n * sizeof(T)); }
  ~Memory() { emulated::deviceMemory().remove(this->data()); }
};

struct Inputs {
  int rows, keys;
  Memory<uint16_t> q{static_cast<size_t>(rows * kColumns)}, k{static_cast<size_t>(keys * kColumns)}, v{k.size()};
  Memory<float> out{q.size()}, lse{static_cast<size_t>(rows)};
  float scale = 0.125f;

  Inputs(int rows, int keys) : rows(rows), keys(keys) {
    std::mt19937 random(1);
    std::normal_distribution<float> distribution;
    for (auto* x : {&q, &k, &v}) {
      for (uint16_t& bits : *x) bits = narrow<bf16>(distribution(random));
    }
  }
  void clear() {
    std::fill(out.begin(), out.end(), 0.f);
    std::fill(lse.begin(), lse.end(), -INFINITY);
  }
};

/// Returns ‖out − reference‖ / ‖reference‖, where the reference is float64.
double relativeError(const Inputs& x) {
  double squaredDifference = 0, squaredNorm = 0;
  for (int i = 0; i < x.rows; i++) {
    std::vector<double> weight(static_cast<size_t>(x.keys)), expected(kColumns);
    double sum = 0;
    for (int j = 0; j < x.keys; j++) {
      double score = 0;
      const uint16_t *q = x.q.data() + i * kColumns, *k = x.k.data() + j * kColumns;
      for (int c = 0; c < kColumns; c++) score += double{widen<bf16>(q[c])} * widen<bf16>(k[c]);
      sum += weight[j] = std::exp(score * x.scale);
    }
    for (int c = 0; c < kColumns; c++) {
      for (int j = 0; j < x.keys; j++) expected[c] += weight[j] / sum * widen<bf16>(x.v[j * kColumns + c]);
      squaredDifference += std::pow(x.out[i * kColumns + c] - expected[c], 2);
      squaredNorm += expected[c] * expected[c];
    }
  }
  return std::sqrt(squaredDifference / squaredNorm);
}

ladder::Problem makeProblem(Inputs& x) {
  return {x.q.data(), x.k.data(), x.v.data(), x.out.data(), x.rows, x.keys, x.scale};
}

TensorMap makeTensorMap(const Memory<uint16_t>& x, int boxRows) {
  const int64_t rows = static_cast<int64_t>(x.size()) / kColumns, bytes = kColumns * 2;
  const auto* base = reinterpret_cast<const char*>(x.data());
  const emulated::EncodedTensorMap encodedMap{base, {kColumns, rows, 1, 1}, {2, bytes, 0, 0}, boxRows};
  TensorMap map;
  std::memcpy(&map, &encodedMap, sizeof encodedMap);
  return map;
}

cuda::AttendParameters makeParameters(Inputs& x) {
  cuda::AttendParameters p{};
  const auto matrix = [](const Memory<uint16_t>& m) {
    return cuda::Matrix{m.data(), 0, 0, kColumns, DType::BFloat16, true};
  };
  p.q = matrix(x.q);
  p.k = matrix(x.k);
  p.v = matrix(x.v);
  p.out = {x.out.data(), 0, 0, kColumns, 1, true};
  p.lse = {x.lse.data(), 0, 0, 1};
  p.headDim = p.valueHeadDim = kColumns;
  p.group = 1;
  p.scale = x.scale;
  p.parts.count = 1;
  p.parts.part[0] = {0, 0, {{0, 0}, {x.keys, 0}, 1, x.rows, x.keys}, 0};
  return p;
}

/// Launch configuration of a rung: rows, threads and shared memory per block.
struct Block {
  int rows, threads;
  unsigned sharedBytes;
};

template <class Kernel, class Parameters>
void runKernel(int rung, Inputs& x, Kernel kernel, const Parameters& p, const Block& block) {
  x.clear();
  emulated::Stats& stats = emulated::stats;
  for (auto* counter : {&stats.globalBytes, &stats.sharedBytes, &stats.ldmatrix, &stats.conflicts}) counter->store(0);
  for (auto* counter : {&stats.mma, &stats.wgmma}) counter->store(0);
  const auto blocks = static_cast<unsigned>((x.rows + block.rows - 1) / block.rows);
  emulated::launch(kernel, {{blocks, 1, 1}, {static_cast<unsigned>(block.threads), 1, 1}, block.sharedBytes, &p}, p);
  std::printf("{\"rung\":%d,\"error\":%.2e,\"deviceBytes\":%lu,\"sharedBytes\":%lu,", rung, relativeError(x),
              stats.globalBytes.load(), stats.sharedBytes.load());
  std::printf("\"ldmatrix\":%lu,\"conflicts\":%lu,\"mma\":%lu,\"wgmma\":%lu}\n", stats.ldmatrix.load(),
              stats.conflicts.load(), stats.mma.load(), stats.wgmma.load());
}

void runAll(int rows, int keys) {
  Inputs x(rows, keys);
  const ladder::Problem p = makeProblem(x);
  runKernel(1, x, rung1, p, {64, 64, 0});
  runKernel(2, x, rung2, p, {64, 64, ladder::kTiledSharedBytes});
  runKernel(3, x, rung3, p, {16, 32, 0});
  constexpr cuda::BlockShape shape = cuda::forwardShape(64);
  runKernel(4, x, rung4, makeParameters(x), {shape.ownTileLength, shape.threads(), cuda::forwardBytes(64)});
  constexpr int kRows = ladder::kGroupRows, kKeys = ladder::kGroupKeys;
  const ladder::MappedProblem mappedProblem{makeTensorMap(x.q, kRows), makeTensorMap(x.k, kKeys),
                                            makeTensorMap(x.v, kKeys), p};
  runKernel(5, x, rung5, mappedProblem, {kRows, 128, ladder::kGroupSharedBytes});
  constexpr cuda::HopperShape hopperShape = cuda::forwardHopperShape(64);
  const cuda::AttendHopperParameters hopperParameters{
      makeTensorMap(x.q, hopperShape.ownTileLength), makeTensorMap(x.k, hopperShape.stepTileLength),
      makeTensorMap(x.v, hopperShape.stepTileLength), makeParameters(x)};
  runKernel(6, x, rung6, hopperParameters,
            {hopperShape.ownTileLength, hopperShape.threads(), cuda::forwardHopperBytes(64)});
}

}  // namespace

int main() {
  try {
    runAll(384, 384);
    runAll(131, 277);  // not divisible by any tile size
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
