// When do requests of the SMs of a GPC merge in a loop that looks like a GEMM's? CTAs with a cp.async ring and no arithmetic.
// Usage: merging place | policy | ring [0|1]   (ring: a kernel a case, cold or warm ones alone, to be run under ncu; prints the cases in order)
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <vector>
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)
__device__ unsigned smid() { unsigned r; asm volatile("mov.u32 %0, %%smid;" : "=r"(r)); return r; }
__device__ unsigned long long gtime() { unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }

struct Case { const char* name; int ctas, warps, per_sm, rows_a, rows_b, width, group, stages, k, compute, skew, warm; };

// A: chunk (row, k) is rows_a x width bytes of a matrix of pitch k_total * width; B likewise.
__global__ void ring(const char* a, const char* b, Case c, long long* log) {
  extern __shared__ __align__(128) char sm[];
  int cols_per = c.group, id = blockIdx.x, row = id % cols_per, col = id / cols_per;
  unsigned dst = (unsigned)__cvta_generic_to_shared(sm);
  long pitch = (long)c.k * c.width; int chunk = (c.rows_a + c.rows_b) * c.width, per_row = c.width / 16;
  const char* pa = a + (long)row * c.rows_a * pitch; const char* pb = b + (long)col * c.rows_b * pitch;
  if (c.skew) { long long t0 = clock64(), d = (id * 2654435761u >> 8) % c.skew; while (clock64() - t0 < d) {} }
  auto load = [&](int k) {
    if (k < c.k) {
      unsigned base = dst + (k % c.stages) * chunk;
      for (int i = threadIdx.x; i < c.rows_a * per_row; i += blockDim.x)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(base + i * 16), "l"(pa + (i / per_row) * pitch + (long)k * c.width + (i % per_row) * 16));
      for (int i = threadIdx.x; i < c.rows_b * per_row; i += blockDim.x)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(base + c.rows_a * c.width + i * 16), "l"(pb + (i / per_row) * pitch + (long)k * c.width + (i % per_row) * 16));
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  if (threadIdx.x == 0) { log[id * 4] = gtime(); log[id * 4 + 3] = smid(); }
  long long c0 = clock64();
  for (int k = 0; k < c.stages - 1; k++) load(k);
  for (int k = 0; k < c.k; k++) {
    if (c.stages == 2) asm volatile("cp.async.wait_group 0;" ::: "memory");
    else if (c.stages == 3) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else asm volatile("cp.async.wait_group 2;" ::: "memory");
    __syncthreads();
    long long t = clock64(); while (clock64() - t < c.compute) {}
    __syncthreads();
    load(k + c.stages - 1);
  }
  if (threadIdx.x == 0) { log[id * 4 + 1] = gtime(); log[id * 4 + 2] = clock64() - c0; }
}

__global__ void where(int* out) { if (threadIdx.x == 0) out[blockIdx.y * gridDim.x + blockIdx.x] = smid(); long long t = clock64(); while (clock64() - t < 60000) {} }

int main(int argc, char** argv) {
  if (argc > 1 && !strcmp(argv[1], "place")) {
    int* out; CK(cudaMalloc(&out, 4096 * 4)); std::vector<int> h(4096); CK(cudaFuncSetAttribute(where, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024));
    for (int smem : {200 * 1024, 100 * 1024, 64 * 1024}) for (int n : {16, 32, 48, 64, 96, 112, 128}) {
      where<<<n, 256, smem>>>(out); CK(cudaDeviceSynchronize()); CK(cudaMemcpy(h.data(), out, n * 4, cudaMemcpyDeviceToHost));
      printf("place_small,smem=%d;grid=%d,sm of each block,", smem, n); for (int i = 0; i < n; i++) printf("%d;", h[i]); printf(",smid\n");
    }
    return 0;
  }
  if (argc > 1 && !strcmp(argv[1], "policy")) {
    int* out; CK(cudaMalloc(&out, 4096 * 4)); std::vector<int> h(4096); struct Grid { int cx, cy, gx, gy; };
    CK(cudaFuncSetAttribute(where, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024));
    for (Grid g : {Grid{2,1,2,64}, Grid{2,1,2,66}, Grid{2,1,2,32}, Grid{2,1,2,16}, Grid{4,1,4,30}, Grid{4,1,4,16}, Grid{4,1,4,8}, Grid{8,1,8,15}}) for (int policy : {0, 1, 2}) {
      cudaLaunchConfig_t cfg = {}; cfg.gridDim = dim3(g.gx, g.gy); cfg.blockDim = 384; cfg.dynamicSmemBytes = 200 * 1024; cudaLaunchAttribute at[2];
      at[0].id = cudaLaunchAttributeClusterDimension; at[0].val.clusterDim.x = g.cx; at[0].val.clusterDim.y = g.cy; at[0].val.clusterDim.z = 1;
      at[1].id = cudaLaunchAttributeClusterSchedulingPolicyPreference; at[1].val.clusterSchedulingPolicyPreference = (cudaClusterSchedulingPolicy)policy; cfg.attrs = at; cfg.numAttrs = 2;
      CK(cudaLaunchKernelEx(&cfg, where, out)); CK(cudaDeviceSynchronize()); int n = g.gx * g.gy; CK(cudaMemcpy(h.data(), out, n * 4, cudaMemcpyDeviceToHost));
      printf("place_policy,cluster=%dx%d;grid=%dx%d;policy=%d,first sm of each cluster,", g.cx, g.cy, g.gx, g.gy, policy); for (int i = 0; i < n; i += g.cx * g.cy) printf("%d;", h[i]); printf(",smid\n");
    }
    return 0;
  }
  std::vector<Case> cases;
  auto add = [&](const char* n, int ctas, int warps, int per_sm, int ra, int rb, int width, int group, int stages, int k, int compute, int skew, int warm) {
    cases.push_back({n, ctas, warps, per_sm, ra, rb, width, group, stages, k, compute, skew, warm}); };
  for (int warm : {1, 0}) for (int k : {16, 64, 224}) for (int comp : {100, 400, 800}) add("128x64", 128, 8, 1, 128, 64, 128, 8, 4, k, comp, 0, warm);
  for (int n : {16, 32, 64, 128}) add("128x128", n, 8, 1, 128, 128, 128, 8, 3, 64, 400, 0, 1);
  for (int s : {32, 64, 128, 256, 512, 1024}) add("skew128x128", 64, 8, 1, 128, 128, 128, 8, 3, 64, 400, s, 1);
  for (int w : {64, 128, 256}) add("width", 64, 8, 1, 128, 128, w, 8, 3, 64 * 128 / w, 400 * w / 128, 0, 1);
  for (int n : {128, 256, 512}) add("persm_64x64", n, 4, n / 128, 64, 64, 128, 8, 3, 64, 400, 0, 1);
  for (int n : {128, 256, 512}) add("persm_64x64_w64", n, 4, n / 128, 64, 64, 64, 8, 3, 128, 200, 0, 1);
  for (int n : {128, 256, 512, 1024}) add("persm_16x128", n, 4, (n + 127) / 128, 16, 128, 128, 8, 3, 64, 400, 0, 1);
  for (int g : {1, 2, 4, 8, 16, 64}) add("group128x128", 64, 8, 1, 128, 128, 128, g, 3, 64, 400, 0, 1);
  for (int ra : {16, 32, 64, 128, 256}) add("onlyB", 64, 8, 1, ra, 128, 128, 64, 3, 64, 400, 0, 1);  // B shared by all, A by none
  for (int st : {2, 3, 4}) add("stages64x64", 64, 4, 1, 64, 64, 128, 8, st, 64, 400, 0, 1);
  for (int wp : {4, 8, 16}) add("warps128x128", 64, wp, 1, 128, 128, 128, 8, 3, 64, 400, 0, 1);
  char *a, *b; long long* log; size_t bytes = 1ull << 30; CK(cudaMalloc(&a, bytes)); CK(cudaMalloc(&b, bytes)); CK(cudaMalloc(&log, 1 << 20)); char* junk; CK(cudaMalloc(&junk, 256 << 20));
  CK(cudaMemset(a, 1, bytes)); CK(cudaMemset(b, 1, bytes));
  CK(cudaFuncSetAttribute(ring, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024));
  std::vector<long long> h(4096 * 4);
  int only = argc > 2 ? atoi(argv[2]) : -1;
  for (auto& c : cases) {
    if (only >= 0 && c.warm != only) continue;
    int need = c.stages * (c.rows_a + c.rows_b) * c.width, smem = 225 * 1024 / c.per_sm - 2048; if (smem > 220 * 1024) smem = 220 * 1024; if (need > smem) { printf("# too much %s\n", c.name); continue; }
    if (!c.warm) CK(cudaMemset(junk, 2, 256 << 20));
    else { Case w = c; w.skew = 0; ring<<<c.ctas, 32 * c.warps, smem>>>(a, b, w, log); }
    ring<<<c.ctas, 32 * c.warps, smem>>>(a, b, c, log);
    CK(cudaDeviceSynchronize()); CK(cudaMemcpy(h.data(), log, c.ctas * 32, cudaMemcpyDeviceToHost));
    long long s0 = h[0], s1 = h[0], e0 = h[1], e1 = h[1]; for (int i = 0; i < c.ctas; i++) { s0 = std::min(s0, h[i * 4]); s1 = std::max(s1, h[i * 4]); e0 = std::min(e0, h[i * 4 + 1]); e1 = std::max(e1, h[i * 4 + 1]); }
    printf("case,%s,ctas=%d,warps=%d,per_sm=%d,a=%d,b=%d,width=%d,group=%d,stages=%d,k=%d,compute=%d,skew=%d,warm=%d,start_spread_ns=%lld,end_spread_ns=%lld,cycles=%lld\n", c.name, c.ctas, c.warps, c.per_sm, c.rows_a, c.rows_b, c.width, c.group, c.stages, c.k, c.compute, c.skew, c.warm, s1 - s0, e1 - e0, h[2]);
    fflush(stdout);
  }
}
