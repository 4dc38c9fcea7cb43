// b is packed once into panels as wide as a register tile; a is read in place if possible (Goto and van de Geijn 2008,
// without packing a). The tasks are blocks of rows, or, if there are few rows, panels, each packed by the task that
// reads it. Sums run over blocks of the depth (the reduction dimension) in order, so that each element of the product
// is summed in the same order for any number of threads.
#include "gemm/gemm.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>

#include "gemm/gemm_kernels.h"
#include "gemm/product.h"
#include "kernels/kernel_table.h"
#include "micro/micro_kernels.h"

namespace mosaic {
namespace {

constexpr int64_t kMaxPackedBytes = 8 << 20;  // bytes of the packed part of b
// Panels are the tasks of products with more than one block of rows only if there are few rows, because each panel
// reads all rows of a again, and at least this many bytes of b, which then does not fit the L2 cache. The number of
// rows that yields enough blocks grows with the number of threads.
constexpr int64_t kMinPanelBytes = 2 << 20;
constexpr int64_t kPanelRowsPerThread = 128, kMinPanelRows = 384, kMaxPanelRows = 1024;
constexpr int64_t kMaxPackedDepth = 4096;     // depth of the packed part of b
// Depth of the packed part that every block of rows reads. A part of few columns stays in the L2 cache.
constexpr int64_t kSharedPackedDepth = 1024;
constexpr int64_t kMaxWideFloats = 1 << 24;   // size limit of a float32 copy of out: 64 MiB, kept by the arena
constexpr int64_t kMaxSumFloats = 1 << 17;    // accumulators per task; they fit the L2 cache
constexpr int64_t kMinParallelMultiplyAdds = 1 << 17;
constexpr int64_t kDotColumnsPerTask = 64;  // per task, for products of few rows
// Rows per task that stores a float32 copy of out. If columns of out are dense, tasks write whole cache lines of them.
constexpr int64_t kMinStoredRows = 16, kMaxStoredRows = 64;

/// Stores part of the product, which was computed in float32.
void storeSums(const GemmKernels& kernels, const Product& p, const MatrixPart& part, const float* sums,
               int64_t sumStride) {
  Matrix out = p.out;
  out.data = at(out, part.row, part.column);
  const GemmEpilogue epilogue =
      p.epilogue ? epilogueAt(*p.epilogue, part.row, part.column, out.data - p.out.data) : GemmEpilogue{};
  kernels.store({sums, sumStride, part.rows, part.columns, out, p.accumulate, p.epilogue ? &epilogue : nullptr});
}

/// Scratch memory of a worker.
struct WorkerMemory {
  void* rows;       // a block of a
  void* panels[2];  // blocks of b, if panels are the tasks
  float* sums;      // accumulators of a task, if out is a 16-bit type
};

/// One product, computed on one worker or on all, with its memory.
class Gemm {
 public:
  Gemm(const GemmKernels& kernels, const Product& product, DType dtype, int threads)
      : kernels_(kernels), product_(product), dtype_(dtype), bytes_(dtypeBytes(dtype)), threads_(threads) {
    isParallelOverPanels_ = isParallelOverPanels();
    // 16-bit results are stored once, after all depths of a part.
    packedDepth_ = isOutputNarrow() ? kMaxPackedDepth : kSharedPackedDepth;
    const int64_t depth = std::min(product_.k, packedDepth_), columnBytes = depth * bytes_;
    columns_ = std::max<int64_t>(kernels_.tileColumns,
                                 kMaxPackedBytes / columnBytes / kernels_.tileColumns * kernels_.tileColumns);
    columns_ = std::min(columns_, roundUp(product_.n, kernels_.tileColumns));
    if (isOutputNarrow()) columns_ = std::min(columns_, roundUp(kMaxSumFloats / kBlockRows, kernels_.tileColumns));
  }

  int64_t packedBytes() const {
    if (isParallelOverPanels_) return 0;
    return columns_ * roundUp(std::min(product_.k, packedDepth_), kernels_.depthMultiple) * bytes_;
  }
  int64_t taskPanelBytes() const {
    return isParallelOverPanels_ ? panelBytes(std::min<int64_t>(kernels_.blockDepth, product_.k)) : 0;
  }
  int64_t rowBytes() const {
    const int64_t depth = roundUp(std::min<int64_t>(kernels_.blockDepth, product_.k), kernels_.depthMultiple);
    return roundUp(std::min(kBlockRows, product_.m), kernels_.rowMultiple) * depth * bytes_;
  }
  int64_t sumFloats() const {
    if (!isOutputNarrow()) return 0;
    return isParallelOverPanels_ ? product_.m * kernels_.tileColumns : std::min(kBlockRows, product_.m) * columns_;
  }
  /// Returns the size of a float32 copy of out, or 0 if none is needed.
  int64_t wideFloats() const { return storesDirectly() ? 0 : wideRows() * product_.n; }

  /// Computes the product on one or all `threads`. forEachTask(tasks, fn) runs a loop of tasks on them.
  template <class ParallelLoop>
  void run(const Product& product, void* packedB, float* wideOut, int threads, const WorkerMemory* workers,
           const ParallelLoop& forEachTask) const {
    if (storesDirectly()) return multiply(product, packedB, threads, workers, forEachTask);
    for (int64_t first = 0; first < product.m; first += wideRows()) {
      Product strip = product;
      strip.m = std::min(wideRows(), product.m - first);
      strip.a.data = at(product.a, first, 0);
      strip.out = {reinterpret_cast<char*>(wideOut), DType::Float32, product.n, 1};
      strip.accumulate = false;
      strip.epilogue = nullptr;
      multiply(strip, packedB, threads, workers, forEachTask);
      const int64_t storedRows = std::min(kMaxStoredRows, roundUp(ceilDiv(strip.m, 4 * threads_), kMinStoredRows));
      forEachTask(ceilDiv(strip.m, storedRows), [&](int64_t task, int) {
        const int64_t row = task * storedRows, rows = std::min(storedRows, strip.m - row);
        storeSums(kernels_, product, {first + row, rows, 0, product.n}, wideOut + row * product.n, product.n);
      });
    }
  }

 private:
  bool isOutputNarrow() const { return product_.out.columnStride == 1 && product_.out.dtype != DType::Float32; }
  /// Whether blocks can be stored to out directly. 16-bit sums must be complete before they are rounded.
  bool storesDirectly() const {
    return product_.out.columnStride == 1 && (!isOutputNarrow() || product_.k <= kMaxPackedDepth);
  }
  /// Whether each panel is packed and read by one task, which processes all rows. This requires enough panels, and rows
  /// that are read in place or form one block.
  bool isParallelOverPanels() const {
    const int64_t panels = ceilDiv(product_.n, kernels_.tileColumns);
    if (product_.m <= kBlockRows) return panels >= 4 * threads_;
    const int64_t maxRows = std::clamp(kPanelRowsPerThread * threads_, kMinPanelRows, kMaxPanelRows);
    return product_.m <= maxRows && product_.n * product_.k * bytes_ >= kMinPanelBytes &&
           panels >= 8 * threads_ && isReadInPlace();
  }
  /// Whether rows of a can be read in place if there are few panels.
  bool isReadInPlace() const {
    return product_.a.dtype == dtype_ && product_.a.columnStride == 1 && product_.m % kernels_.rowMultiple == 0 &&
           product_.k % kernels_.depthMultiple == 0;
  }
  /// Returns the rows of a float32 copy of out. All copies but the last have a multiple of `rowMultiple` rows, because
  /// `isReadInPlace` requires that for all rows of a.
  int64_t wideRows() const {
    const int64_t rows = kMaxWideFloats / product_.n / kernels_.rowMultiple * kernels_.rowMultiple;
    return std::min(product_.m, std::max(kBlockRows, rows));
  }

  struct RowRange {
    int64_t first, count;
  };

  /// Returns the number of tasks for `rows` rows: blocks of at most kBlockRows. It is a multiple of the number of
  /// threads if there are enough tiles.
  int64_t countRowTasks(int64_t rows, int threads) const {
    const int64_t blocks = ceilDiv(rows, kBlockRows);
    if (threads == 1) return blocks;
    return std::min(roundUp(std::max<int64_t>(4 * threads, blocks), threads), ceilDiv(rows, kernels_.tileRows));
  }

  /// Returns the rows of a task. The numbers of tiles of two tasks differ by at most one.
  RowRange rowsOfTask(int64_t task, int64_t tasks, int64_t rows) const {
    const int64_t tiles = ceilDiv(rows, kernels_.tileRows);
    const auto firstRow = [&](int64_t index) { return std::min(index * tiles / tasks * kernels_.tileRows, rows); };
    return {firstRow(task), firstRow(task + 1) - firstRow(task)};
  }

  template <class ParallelLoop>
  void multiply(const Product& p, void* packedB, int threads, const WorkerMemory* workers,
                const ParallelLoop& forEachTask) const {
    if (isParallelOverPanels_) return multiplyPanels(p, workers, forEachTask);
    for (int64_t j = 0; j < p.n; j += columns_) {
      for (int64_t k = 0; k < p.k; k += packedDepth_) {
        const MatrixPart part{k, std::min(packedDepth_, p.k - k), j, std::min(columns_, p.n - j)};
        forEachTask(ceilDiv(part.columns, kernels_.tileColumns), [&](int64_t panel, int) { pack(p, part, panel,
            packedB); });
        const int64_t rowTasks = countRowTasks(p.m, threads);
        forEachTask(rowTasks, [&](int64_t task, int worker) {
          multiplyRows(p, part, rowsOfTask(task, rowTasks, p.m), workers[worker],
                       [&](int64_t depth) { return panelAt(packedB, part, depth, 0); });
        });
      }
    }
  }

  /// Each task computes one panel for all rows. It packs the panel block by block, each block while the previous one is
  /// multiplied, so that packed data stays in the caches of one core.
  template <class ParallelLoop>
  void multiplyPanels(const Product& p, const WorkerMemory* workers, const ParallelLoop& forEachTask) const {
    const int64_t columns = kernels_.tileColumns;
    forEachTask(ceilDiv(p.n, columns), [&](int64_t panel, int worker) {
      const int64_t j = panel * columns;
      for (int64_t k = 0; k < p.k; k += kMaxPackedDepth) {
        const MatrixPart part{k, std::min(kMaxPackedDepth, p.k - k), j, std::min(columns, p.n - j)};
        packBlock(p, part, {0, 0}, workers[worker].panels[0]);
        multiplyRows(p, part, {0, p.m}, workers[worker],
                     [&](int64_t depth) { return panelOf(workers[worker], depth); });
      }
    });
  }

  /// Returns the buffer in which a task packs the block at `depth`; it alternates with the buffer of the previous
  /// block.
  void* panelOf(const WorkerMemory& memory, int64_t depth) const {
    return memory.panels[depth / kernels_.blockDepth % 2];
  }

  /// Returns the size of a panel. The panels of a block of depths are contiguous: [block][panel][depth][columns].
  int64_t panelBytes(int64_t depth) const {
    return roundUp(depth, kernels_.depthMultiple) * kernels_.tileColumns * bytes_;
  }
  char* panelAt(void* packedB, const MatrixPart& b, int64_t depth, int64_t panel) const {
    const int64_t panels = ceilDiv(b.columns, kernels_.tileColumns),
                  blockDepth = std::min<int64_t>(kernels_.blockDepth, b.rows - depth);
    return static_cast<char*>(packedB) + panels * depth * kernels_.tileColumns * bytes_ +
           panel * panelBytes(blockDepth);
  }

  void pack(const Product& p, const MatrixPart& b, int64_t panel, void* packedB) const {
    for (int64_t depth = 0; depth < b.rows; depth += kernels_.blockDepth) {
      packBlock(p, b, {depth, panel}, panelAt(packedB, b, depth, panel));
    }
  }

  struct PanelBlock {
    int64_t depth, panel;
  };

  MatrixPart partOf(const MatrixPart& b, PanelBlock block) const {
    const int64_t first = block.panel * kernels_.tileColumns;
    return {b.row + block.depth, std::min<int64_t>(kernels_.blockDepth, b.rows - block.depth), b.column + first,
            std::min<int64_t>(kernels_.tileColumns, b.columns - first)};
  }
  void packBlock(const Product& p, const MatrixPart& b, PanelBlock block, void* packedB) const {
    kernels_.packColumns(p.b, partOf(b, block), packedB);
  }

  /// Multiplies rows. panelsAt(depth) returns the packed panels of the block at that depth.
  template <class PanelsAt>
  void multiplyRows(const Product& p, const MatrixPart& b, RowRange rows, const WorkerMemory& memory,
                    const PanelsAt& panelsAt) const {
    const Matrix sums{reinterpret_cast<char*>(memory.sums), DType::Float32, b.columns, 1};
    Matrix out = p.out;
    out.data = at(out, rows.first, b.column);
    const GemmEpilogue epilogue =
        p.epilogue ? epilogueAt(*p.epilogue, rows.first, b.column, out.data - p.out.data) : GemmEpilogue{};
    for (int64_t depth = 0; depth < b.rows; depth += kernels_.blockDepth) {
      const int64_t blockDepth = std::min<int64_t>(kernels_.blockDepth, b.rows - depth);
      const bool isLastBlock = depth + blockDepth == b.rows, isFinished = b.row + depth + blockDepth == p.k;
      const bool isStoredToSums = isOutputNarrow() && storesDirectly() && !isLastBlock;
      GemmBlock block;
      const MatrixPart part{rows.first, rows.count, b.row + depth, blockDepth};
      block.a = kernels_.packRows(p.a, part, ceilDiv(b.columns, kernels_.tileColumns), memory.rows);
      block.areRowsPacked = block.a.data == memory.rows;
      block.panels = panelsAt(depth);
      block.panelBytes = panelBytes(blockDepth);
      block.rows = rows.count;
      block.columns = b.columns;
      block.depth = static_cast<int32_t>(blockDepth);
      block.sum = isOutputNarrow() && storesDirectly() && isLastBlock && depth > 0 ? memory.sums : nullptr;
      block.sumStride = b.columns;
      block.out = isStoredToSums ? sums : out;
      const bool isContinuation = p.accumulate || b.row + depth > 0;
      block.add = isStoredToSums ? depth > 0 : isOutputNarrow() && storesDirectly() ? p.accumulate : isContinuation;
      block.epilogue = p.epilogue && isFinished ? &epilogue : nullptr;
      const bool packsNextBlock = isParallelOverPanels_ && !isLastBlock;
      const int64_t nextDepth = depth + blockDepth;
      block.next = packsNextBlock ? BlockToPack{p.b, partOf(b, {nextDepth, 0}), panelOf(memory, nextDepth)}
                                  : BlockToPack{};
      const MatrixPart nextPart{rows.first, rows.count, b.row + nextDepth,
                                std::min<int64_t>(kernels_.blockDepth, b.rows - nextDepth)};
      block.nextRows = block.areRowsPacked && !isLastBlock ? readsOf(p.a, nextPart) : UpcomingReads{};
      kernels_.multiply(block);
    }
  }

  const GemmKernels& kernels_;
  const Product& product_;
  const DType dtype_;    // dtype of the products
  const int64_t bytes_;  // bytes per element of that dtype
  const int threads_;
  bool isParallelOverPanels_;
  int64_t packedDepth_;  // depth per packed part
  int64_t columns_;  // columns of b per packed part
};

/// Returns the product at `index` of the batch, and stores its epilogue in `epilogue`.
Product productAt(const ProductBatch& batch, int64_t index, GemmEpilogue& epilogue) {
  Product product = productAt(batch, index);
  if (batch.product.epilogue) {
    epilogue = epilogueAt(*batch.product.epilogue, 0, 0, product.out.data - batch.product.out.data);
    product.epilogue = &epilogue;
  }
  return product;
}

/// Computes a product of few rows. The tasks are ranges of columns.
void multiplyFewRows(const Product& p, const GemmKernels& kernels, Pool& pool) {
  const int64_t stride = roundUp(p.k, 16), tasks = ceilDiv(p.n, kDotColumnsPerTask);
  Arena& sharedArena = pool.sharedArena();
  sharedArena.reset();
  float* a = sharedArena.allocate<float>(p.m * stride);
  float* sums = sharedArena.allocate<float>(p.m * tasks * kDotColumnsPerTask);
  for (int64_t row = 0; row < p.m; row++) kernels.widenRow(p.a, row, p.k, a + row * stride);
  const auto task = [&](int64_t index, int) {
    const int64_t first = index * kDotColumnsPerTask, columns = std::min(kDotColumnsPerTask, p.n - first);
    float* values = sums + index * p.m * kDotColumnsPerTask;
    Matrix b = p.b;
    b.data = at(b, 0, first);
    kernels.multiplyRows({a, stride, b, p.m, columns, p.k, values, kDotColumnsPerTask});
    storeSums(kernels, p, {0, p.m, first, columns}, values, kDotColumnsPerTask);
  };
  if (pool.threads() > 1 && p.m * p.n * p.k >= kMinParallelMultiplyAdds) return pool.parallelFor(tasks, task);
  for (int64_t index = 0; index < tasks; index++) task(index, 0);
}

/// Computes a batch of products. The batch and the reduction dimension must not be empty.
void multiply(const ProductBatch& batch, Isa isa, Pool& pool) {
  const Product& p = batch.product;
  const bool hasSameDType = p.a.dtype == p.b.dtype;
  const MicroKernels& selectedKernels = microKernels(isa, hasSameDType ? p.a.dtype : DType::Float32);
  if (batch.hasFewRows) return multiplyFewRows(p, selectedKernels.gemm, pool);
  const int threads = pool.threads();
  const Gemm gemm(selectedKernels.gemm, p, selectedKernels.products, threads);
  for (int worker = 0; worker < threads; worker++) pool.arena(worker).reset();
  std::vector<WorkerMemory> workers;
  for (int worker = 0; worker < threads; worker++) {
    Arena& arena = pool.arena(worker);
    void* rows = arena.allocate<char>(gemm.rowBytes());
    void* panels[2] = {arena.allocate<char>(gemm.taskPanelBytes()), arena.allocate<char>(gemm.taskPanelBytes())};
    workers.push_back({rows, {panels[0], panels[1]}, arena.allocate<float>(gemm.sumFloats())});
  }
  const bool isSmallProduct = p.m * p.n * p.k < kMinParallelMultiplyAdds;
  if (threads == 1 || (isSmallProduct && batch.count == 1) || batch.count < threads) {
    void* packedB = pool.arena(0).allocate<char>(gemm.packedBytes());
    float* wideOut = pool.arena(0).allocate<float>(gemm.wideFloats());
    for (int64_t index = 0; index < batch.count; index++) {
      GemmEpilogue epilogue;
      const Product product = productAt(batch, index, epilogue);
      if (threads == 1 || isSmallProduct) {
        gemm.run(product, packedB, wideOut, 1, workers.data(), [](int64_t tasks, const auto& fn) {
          for (int64_t task = 0; task < tasks; task++) fn(task, 0);
        });
      } else {
        gemm.run(product, packedB, wideOut, threads, workers.data(),
                 [&](int64_t tasks, const auto& fn) { pool.parallelFor(tasks, fn); });
      }
    }
    return;
  }
  // Many products: each on one worker, with separate scratch memory.
  std::vector<void*> packedB;
  std::vector<float*> wideOut;
  for (int worker = 0; worker < threads; worker++) {
    packedB.push_back(pool.arena(worker).allocate<char>(gemm.packedBytes()));
    wideOut.push_back(pool.arena(worker).allocate<float>(gemm.wideFloats()));
  }
  pool.parallelFor(batch.count, [&](int64_t index, int worker) {
    const auto workerIndex = static_cast<size_t>(worker);
    GemmEpilogue epilogue;
    gemm.run(productAt(batch, index, epilogue), packedB[workerIndex], wideOut[workerIndex], 1, workers.data(),
             [worker](int64_t tasks, const auto& fn) {
               for (int64_t task = 0; task < tasks; task++) fn(task, worker);
             });
  });
}

bool hasSameLayout(const View& a, const View& b) {
  return a.dtype == b.dtype && a.rank == b.rank && std::equal(a.stride, a.stride + a.rank, b.stride);
}

/// Returns the bias as dense float32: in place, or converted into `copy`.
const float* denseBias(const View& bias, std::vector<float>& copy, Isa isa, Pool& pool) {
  if (bias.dtype == DType::Float32 && bias.stride[0] == 1) return static_cast<const float*>(bias.data);
  copy.resize(static_cast<size_t>(bias.shape[0]));
  View denseCopy = bias;
  denseCopy.data = copy.data();
  denseCopy.dtype = DType::Float32;
  denseCopy.stride[0] = 1;
  getKernels(isa).copy({denseCopy, bias}, pool);
  return copy.data();
}

/// Returns the elements [first, first + count) along an axis, counted from the last one, of a view that may be absent,
/// or broadcast along that axis.
View narrowAxis(const View& view, int axisFromLast, int64_t first, int64_t count) {
  View part = view;
  const int axis = view.rank - 1 - axisFromLast;
  if (!view.data || axis < 0 || view.shape[axis] == 1) return part;
  part.data = static_cast<char*>(view.data) + first * view.stride[axis] * dtypeBytes(view.dtype);
  part.shape[axis] = count;
  return part;
}

/// Returns part of a call of `linear`. The axis is the rows of out or one of its leading axes.
LinearArguments narrowAxis(const LinearArguments& args, int axisFromLast, int64_t first, int64_t count) {
  const auto part = [&](const View& view) { return narrowAxis(view, axisFromLast, first, count); };
  const LinearEpilogue& e = args.epilogue;
  return {part(args.out), part(args.a), axisFromLast == 1 ? args.b : part(args.b),
          {e.bias, e.activation, {part(e.gate)}, {part(e.preActivation)}}};
}

int64_t countElements(const View& view) {
  return std::accumulate(view.shape, view.shape + view.rank, int64_t{1}, std::multiplies<>());
}

/// Returns a view of the same shape on contiguous float32 elements.
View makeFloatView(const View& shape, float* data) {
  View view = shape;
  view.data = data;
  view.dtype = DType::Float32;
  for (int64_t axis = view.rank - 1, stride = 1; axis >= 0; stride *= view.shape[axis--]) view.stride[axis] = stride;
  return view;
}

/// Computes a call of `linear` in parts of at most kMaxWideFloats elements of out, along the outermost axis. Returns
/// false, and computes nothing, if the call is not larger or has one row.
bool linearInParts(const LinearArguments& args, Isa isa, Pool& pool) {
  const View& out = args.out;
  int axis = 0;
  while (axis < out.rank - 1 && out.shape[axis] == 1) axis++;
  const int64_t length = out.shape[axis], size = countElements(out);
  if (size <= kMaxWideFloats || axis >= out.rank - 1) return false;
  const int64_t step = std::max<int64_t>(1, kMaxWideFloats / (size / length));
  for (int64_t first = 0; first < length; first += step) {
    linear(narrowAxis(args, out.rank - 1 - axis, first, std::min(step, length - first)), isa, pool);
  }
  return true;
}

/// Computes `linear` with its epilogue in separate passes. If an activation or a gate reads the sums, or if they are
/// stored in two dtypes, they are kept in a float32 copy until then, so that results are rounded once. The copy has a
/// limited size: large calls are split.
void linearInPasses(const LinearArguments& args, Isa isa, Pool& pool) {
  const auto& [out, a, b, epilogue] = args;
  const auto& [bias, activation, gate, preActivation] = epilogue;
  const Kernels& kernels = getKernels(isa);
  View sums = preActivation.data ? static_cast<const View&>(preActivation) : out;
  const bool isCopyNeeded =
      sums.dtype != DType::Float32 && (gate.data || activation.has_value() || sums.dtype != out.dtype);
  std::unique_ptr<float[]> copy;
  if (isCopyNeeded) {
    if (linearInParts(args, isa, pool)) return;
    copy.reset(new float[static_cast<size_t>(countElements(out))]);
    sums = makeFloatView(out, copy.get());
  }
  if (a.shape[a.rank - 1] > 0) {
    linear({sums, a, b, {bias, std::nullopt, {}, {}}}, isa, pool);
  } else if (bias.data) {
    kernels.copy({sums, bias}, pool);
  } else {
    kernels.fill({sums, 0.0f}, pool);
  }
  if (isCopyNeeded && preActivation.data) kernels.copy({preActivation, sums}, pool);
  if (gate.data) {
    kernels.gate({activation, out, gate, sums}, pool);
  } else if (activation) {
    kernels.unary({*activation, out, sums}, pool);
  } else if (preActivation.data) {
    kernels.copy({out, sums}, pool);
  }
}

}  // namespace

void matmul(const MatmulArguments& args, Isa isa, Pool& pool) {
  const ProductBatch batch = makeBatch({args.out, args.a, args.b, args.accumulate});
  const Product& p = batch.product;
  if (batch.count == 0 || p.m == 0 || p.n == 0) return;
  if (p.k > 0) return multiply(batch, isa, pool);
  if (!args.accumulate) getKernels(isa).fill({args.out, 0.0f}, pool);
}

void linear(const LinearArguments& args, Isa isa, Pool& pool) {
  const auto& [out, a, b, epilogue] = args;
  const auto& [bias, activation, gate, preActivation] = epilogue;
  ProductBatch batch = makeBatch({out, a, b, false});
  Product& p = batch.product;
  if (batch.count == 0 || p.m == 0 || p.n == 0) return;
  const bool hasSameLayouts =
      (!preActivation.data || hasSameLayout(preActivation, out)) && (!gate.data || hasSameLayout(gate, out));
  if (p.k == 0 || !hasSameLayouts) return linearInPasses(args, isa, pool);
  std::vector<float> copy;
  const float* values = bias.data ? denseBias(bias, copy, isa, pool) : nullptr;
  const GemmEpilogue gemmEpilogue{batch.isTransposed ? nullptr : values,
                                  batch.isTransposed ? values : nullptr,
                                  activation.has_value(),
                                  activation.value_or(UnaryOp::Neg),
                                  static_cast<const char*>(gate.data),
                                  static_cast<char*>(preActivation.data)};
  p.epilogue = &gemmEpilogue;
  multiply(batch, isa, pool);
}

}  // namespace mosaic
