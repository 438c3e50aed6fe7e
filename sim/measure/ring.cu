// When the stages of a TMA ring arrive in every CTA of a GEMM-shaped kernel: A's rows multicast in a cluster, B's rows each CTA's own.
// Two producers, one for each operand, fill the ring; 128 threads take its stages, multiply (or not) and free them.
// Usage: ring   (CSV on standard output: bench,param1,param2,value,unit)
//   ring_start: ns from the grid's first CTA to the others, their mean and the latest (means over repeats; the timer steps by 32 ns)
//   ring_stage: SM cycles from a CTA's own start until it asks for B of its k-th iteration and until that stage is there: over CTAs and repeats
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
#include <cuda.h>
#include <cudaTypedefs.h>
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)
constexpr int LOGGED = 48;
struct Case { int clusters, size, rows_a, rows_b, stages, n_k, mma, warm; };
struct Log { unsigned long long start_ns; int issue[LOGGED], full[LOGGED]; };
__device__ unsigned rank_in_cluster() { unsigned r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ unsigned long long gtime() { unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
__device__ void wait_bar(unsigned b, unsigned phase) {
  unsigned ok = 0;
  while (!ok) asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(ok) : "r"(b), "r"(phase) : "memory");
}
__device__ void load(const CUtensorMap* map, unsigned dst, unsigned bar, int x, int y, unsigned mask) {
  if (mask) asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" :: "r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar), "h"((unsigned short)mask) : "memory");
  else asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" :: "r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
__device__ uint64_t descriptor(unsigned at) { return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62; }
__device__ void mma(float (&d)[4], unsigned a, unsigned b) {  // m64n8k16 from B's 64 rows and A's 8
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0;\n}" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(descriptor(a)), "l"(descriptor(b)));
}
__global__ void __launch_bounds__(384) ring(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, Case c, Log* logs, float* sink) {
  extern __shared__ __align__(1024) char raw[]; __shared__ __align__(8) unsigned long long bars[2][32]; __shared__ int issued[LOGGED], arrived[LOGGED];
  long long c0 = clock64(); unsigned long long ns = gtime(); Log& log = logs[blockIdx.x];
  unsigned base = ((unsigned)__cvta_generic_to_shared(raw) + 1023) & ~1023u, full = (unsigned)__cvta_generic_to_shared(bars[0]), empty = (unsigned)__cvta_generic_to_shared(bars[1]);
  int a_bytes = c.rows_a * 128, b_bytes = c.rows_b * 128, stage = a_bytes + b_bytes; unsigned rank = rank_in_cluster();
  if (threadIdx.x == 0) for (int i = 0; i < c.stages; i++) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" :: "r"(full + 8 * i));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(empty + 8 * i), "r"(c.size * 4));
  }
  asm volatile("fence.mbarrier_init.release.cluster;"); asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;");
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < 2 && lane == 0) {  // a producer for each operand
    int slot = 0, part = c.rows_a / c.size; unsigned phase = 1, start = clock(), skew = start - (unsigned)c0;
    for (int k = 0; k < c.n_k; k++) {
      unsigned dst = base + slot * stage, bar = full + 8 * slot;
      wait_bar(empty + 8 * slot, phase);
      asm volatile("mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(warp ? b_bytes : a_bytes));
      if (warp == 0) load(&a, dst + b_bytes + rank * part * 128, bar, k * 64, rank * part, c.size > 1 ? (1u << c.size) - 1 : 0);
      else load(&b, dst, bar, k * 64, blockIdx.x * c.rows_b, 0);
      if (warp && k < LOGGED) issued[k] = clock() - start + skew;  // not to global memory: the next arrive would wait for it
      if (++slot == c.stages) { slot = 0; phase ^= 1; }
    }
    if (warp) log.start_ns = ns;
  }
  if (warp >= 4 && warp < 8) {
    int slot = 0; unsigned phase = 0; float d[4] = {};
    for (int k = 0; k < c.n_k; k++) {
      wait_bar(full + 8 * slot, phase);
      if (threadIdx.x == 128 && k < LOGGED) arrived[k] = clock() - (unsigned)c0;
      if (c.mma) {
        unsigned at = base + slot * stage;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int i = 0; i < 4; i++) mma(d, at + 32 * i, at + b_bytes + 32 * i);
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
      }
      if (lane < c.size) { unsigned remote; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(empty + 8 * slot), "r"(lane)); asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(remote) : "memory"); }
      if (++slot == c.stages) { slot = 0; phase ^= 1; }
    }
    if (threadIdx.x == 128) { for (int i = 0; i < LOGGED; i++) { log.issue[i] = issued[i]; log.full[i] = arrived[i]; } }
    if (d[0] == 12345.f) *sink = d[1] + d[2] + d[3];
  }
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;");
}
__global__ void flush_l2(const float4* p, size_t n, float* sink) {  // by reads: dirty lines would have to go before others come
  float x = 0; for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) x += p[i].x;
  if (x == 12345.f) *sink = x;
}
static CUtensorMap map_of(void* at, int rows, int cols, int box_rows) {
  static PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr; cudaDriverEntryPointQueryResult found;
  if (!encode) CK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void**)&encode, 12000, cudaEnableDefault, &found));
  CUtensorMap map; cuuint64_t dims[2] = {(cuuint64_t)cols, (cuuint64_t)rows}, pitch[1] = {(cuuint64_t)cols * 2}; cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, step[2] = {1, 1};
  if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, at, dims, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)) { fprintf(stderr, "no tensor map\n"); exit(1); }
  return map;
}
struct Tally {  // of one quantity over CTAs and repeats
  double sum = 0; int n = 0, least = 1 << 30, most = 0;
  void add(int x) { sum += x; n++; least = std::min(least, x); most = std::max(most, x); }
  double mean() const { return sum / n; }
};
static void report(const Case& c, const Tally& start, const Tally& latest, const std::vector<Tally>& issue, const std::vector<Tally>& full) {
  char name[128]; snprintf(name, sizeof name, "clusters=%d;size=%d;rows_a=%d;rows_b=%d;stages=%d;n_k=%d;mma=%d;warm=%d", c.clusters, c.size, c.rows_a, c.rows_b, c.stages, c.n_k, c.mma, c.warm);
  printf("ring_start,%s,mean;latest,%.1f;%.1f,ns\n", name, start.mean(), latest.mean());
  for (int k = 0; k < c.n_k; k++) printf("ring_stage,%s,k=%d;issue;arrival;least;most,%.1f;%.1f;%d;%d,cycles\n", name, k, issue[k].mean(), full[k].mean(), full[k].least, full[k].most);
}
int main() {
  char *a, *b; float4* scratch; float* sink; Log* logs; const size_t flush = 256ul << 20;
  CK(cudaMalloc(&a, 64 << 20)); CK(cudaMalloc(&b, 512 << 20)); CK(cudaMalloc(&scratch, flush)); CK(cudaMalloc(&sink, 4)); CK(cudaMalloc(&logs, sizeof(Log) * 256));
  CK(cudaMemset(scratch, 0, flush)); CK(cudaMemset(a, 0, 64 << 20)); CK(cudaMemset(b, 0, 512 << 20));
  CK(cudaFuncSetAttribute(ring, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024)); CK(cudaFuncSetAttribute(ring, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  std::vector<Case> cases;
  for (int warm : {0, 1}) for (int mma : {0, 1}) for (int n_k : {16, 24})
    for (auto g : {std::pair<int, int>{1, 1}, {16, 1}, {64, 1}, {132, 1}, {64, 2}, {32, 4}, {24, 4}, {16, 4}, {8, 8}, {14, 8}}) if (mma || g.first * g.second >= 96) cases.push_back({g.first, g.second, 8, 64, 16, n_k, mma, warm});
  for (int warm : {0, 1}) for (auto g : {std::pair<int, int>{132, 1}, {64, 2}}) { cases.push_back({g.first, g.second, 128, 128, 6, 24, 0, warm}); cases.push_back({g.first, g.second, 64, 64, 12, 24, 0, warm}); }
  printf("bench,param1,param2,value,unit\n");
  std::vector<Log> h(256);
  for (auto& c : cases) {
    int ctas = c.clusters * c.size; CUtensorMap ma = map_of(a, c.rows_a, c.n_k * 64, c.rows_a / c.size), mb = map_of(b, ctas * c.rows_b, c.n_k * 64, c.rows_b);
    cudaLaunchConfig_t cfg = {}; cudaLaunchAttribute at[1]; at[0].id = cudaLaunchAttributeClusterDimension; at[0].val.clusterDim.x = c.size; at[0].val.clusterDim.y = at[0].val.clusterDim.z = 1;
    cfg.blockDim = dim3(384); cfg.gridDim = dim3(ctas); cfg.dynamicSmemBytes = 1024 + c.stages * (c.rows_a + c.rows_b) * 128; cfg.attrs = at; cfg.numAttrs = 1;
    if (cfg.dynamicSmemBytes < 150 * 1024) cfg.dynamicSmemBytes = 150 * 1024;
    Tally start, latest; std::vector<Tally> issue(LOGGED), full(LOGGED);
    for (int r = 0; r < 5; r++) {
      CK(cudaMemset(logs, 0, sizeof(Log) * 256));
      if (!c.warm) { flush_l2<<<528, 256>>>(scratch, flush / 16, sink); CK(cudaDeviceSynchronize()); }
      if (cudaLaunchKernelEx(&cfg, ring, ma, mb, c, logs, sink) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) { fprintf(stderr, "case %d x %d: %s\n", c.clusters, c.size, cudaGetErrorString(cudaGetLastError())); break; }
      if (r < 2) continue;  // warm up
      CK(cudaMemcpy(h.data(), logs, sizeof(Log) * ctas, cudaMemcpyDeviceToHost)); unsigned long long t0 = ~0ull; for (int i = 0; i < ctas; i++) t0 = std::min(t0, h[i].start_ns);
      unsigned long long t1 = t0; for (int i = 0; i < ctas; i++) { start.add(h[i].start_ns - t0); t1 = std::max(t1, h[i].start_ns); }
      latest.add(t1 - t0);
      for (int i = 0; i < ctas; i++) for (int k = 0; k < c.n_k; k++) { issue[k].add(h[i].issue[k]); full[k].add(h[i].full[k]); }
    }
    if (start.n) report(c, start, latest, issue, full);
  }
}
