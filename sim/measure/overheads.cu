// Fixed costs: a slot's turn-round between CTAs, barriers, one k-iteration of a warp-specialised consumer.
// Usage: overheads [turnround | barriers | rings]   (CSV on standard output: bench,param1,param2,value,unit)
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <algorithm>
#include <map>
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)
__device__ unsigned smid() { unsigned r; asm volatile("mov.u32 %0, %%smid;" : "=r"(r)); return r; }

__global__ void spin(long long* out, int cycles) {  // start, end, SM of every CTA
  extern __shared__ char sm[]; long long t0 = clock64();
  while (clock64() - t0 < cycles) {}
  __syncthreads();
  if (threadIdx.x == 0) { out[3 * blockIdx.x] = t0; out[3 * blockIdx.x + 1] = clock64(); out[3 * blockIdx.x + 2] = smid(); }
}
static void turnround(int sms) {
  long long* d; int n = sms * 40; CK(cudaMalloc(&d, 3 * n * 8)); CK(cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
  for (int smem : {200 * 1024, 100 * 1024, 50 * 1024}) for (int threads : {128, 256, 384}) {
    for (int r = 0; r < 2; r++) { spin<<<n, threads, smem>>>(d, 20000); CK(cudaDeviceSynchronize()); }
    std::vector<long long> h(3 * n); CK(cudaMemcpy(h.data(), d, 3 * n * 8, cudaMemcpyDeviceToHost));
    std::map<long long, std::vector<std::pair<long long, long long>>> by;
    for (int i = 0; i < n; i++) by[h[3 * i + 2]].push_back({h[3 * i], h[3 * i + 1]});
    std::vector<long long> gaps; int occ = 200 * 1024 / smem;
    for (auto& p : by) {
      std::vector<long long> s, e; for (auto& x : p.second) { s.push_back(x.first); e.push_back(x.second); }
      std::sort(s.begin(), s.end()); std::sort(e.begin(), e.end());
      for (size_t i = occ; i < s.size(); i++) gaps.push_back(s[i] - e[i - occ]);  // the i-th start follows the (i-occ)-th end
    }
    std::sort(gaps.begin(), gaps.end());
    printf("cta_turnround,ctas_per_sm=%d;threads=%d,p10;p50;p90,%lld;%lld;%lld,cycles\n", occ, threads, gaps[gaps.size() / 10], gaps[gaps.size() / 2], gaps[gaps.size() * 9 / 10]);
  }
}
__global__ void barrier(long long* out, int n, int wait, const char* src) {
  extern __shared__ char sm[]; unsigned dst = (unsigned)__cvta_generic_to_shared(sm) + threadIdx.x * 16;
  __syncthreads(); long long t0 = clock64();
  for (int i = 0; i < n; i++) {
    if (wait == 2) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(dst), "l"(src + threadIdx.x * 16));
    if (wait) asm volatile("cp.async.commit_group;\ncp.async.wait_group 1;" ::: "memory");
    __syncthreads();
  }
  if (threadIdx.x == 0 && blockIdx.x == 0) *out = clock64() - t0;
}
static void barriers(int sms) {
  long long *d, h; char* src; CK(cudaMalloc(&d, 8)); CK(cudaMalloc(&src, 1 << 20));
  for (int threads : {128, 256, 384}) for (int blocks : {1, sms, 2 * sms}) for (int wait : {0, 1, 2}) {
    for (int r = 0; r < 2; r++) { barrier<<<blocks, threads, 8192>>>(d, 2000, wait, src); CK(cudaDeviceSynchronize()); }
    CK(cudaMemcpy(&h, d, 8, cudaMemcpyDeviceToHost));
    printf("barrier,threads=%d;blocks=%d,%s,%.1f,cycles\n", threads, blocks, wait == 2 ? "one cp.async each" : wait ? "commit and wait_group" : "bar.sync", h / 2000.0);
  }
}
__device__ void wait_bar(unsigned b, unsigned ph) {
  unsigned ok = 0;
  while (!ok) asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(ok) : "r"(b), "r"(ph) : "memory");
}
// a producer thread and a consumer warpgroup pass S stages round by mbarriers; the consumer runs `mma` wgmma m64n8k16 a stage; `copy` bytes come by bulk copy
__global__ void ring(long long* out, int n, int stages, int mma, int copy, const char* src) {
  extern __shared__ __align__(1024) char sm[]; __shared__ __align__(8) unsigned long long full[16], empty[16];
  unsigned base = (unsigned)__cvta_generic_to_shared(sm), f = (unsigned)__cvta_generic_to_shared(full), e = (unsigned)__cvta_generic_to_shared(empty);
  if (threadIdx.x == 0) for (int i = 0; i < stages; i++) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(f + 8 * i)); asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" :: "r"(e + 8 * i)); }
  asm volatile("fence.proxy.async.shared::cta;"); __syncthreads(); long long t0 = clock64();
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) for (int i = 0; i < n; i++) {
      int s = i % stages; if (i >= stages) wait_bar(e + 8 * s, (i / stages - 1) & 1);
      if (copy) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(f + 8 * s), "r"(copy) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(base + s * 16384), "l"(src + (i % 64) * 16384), "r"(copy), "r"(f + 8 * s) : "memory");
      } else asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(f + 8 * s) : "memory");
    }
  } else {
    float d[4] = {0, 0, 0, 0}; unsigned long long da = ((base & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62), db = da;
    for (int i = 0; i < n; i++) {
      int s = i % stages; wait_bar(f + 8 * s, (i / stages) & 1);
      if (mma) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < mma; k++) asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(da), "l"(db));
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
      }
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(e + 8 * s) : "memory");
    }
    if (d[0] == 1.2345f) out[1] = 1;
  }
  __syncthreads(); if (threadIdx.x == 0 && blockIdx.x == 0) *out = clock64() - t0;
}
static void rings(int sms) {
  long long *d, h; char* src; CK(cudaMalloc(&d, 64)); CK(cudaMalloc(&src, 4 << 20)); CK(cudaMemset(src, 0, 4 << 20)); CK(cudaFuncSetAttribute(ring, cudaFuncAttributeMaxDynamicSharedMemorySize, 210 * 1024));
  for (int blocks : {1, sms}) for (int stages : {1, 2, 4, 8, 12}) for (int mma : {0, 4, 8}) for (int copy : {0, 4096, 16384}) {
    for (int r = 0; r < 2; r++) { ring<<<blocks, 160, 200 * 1024>>>(d, 2000, stages, mma, copy, src); CK(cudaDeviceSynchronize()); }
    CK(cudaMemcpy(&h, d, 8, cudaMemcpyDeviceToHost));
    printf("ring_iteration,blocks=%d;stages=%d,wgmma_n8=%d;copy=%d,%.1f,cycles\n", blocks, stages, mma, copy, h / 2000.0);
  }
}
int main(int argc, char** argv) {
  cudaDeviceProp p; CK(cudaGetDeviceProperties(&p, 0)); const struct { const char* name; void (*run)(int); } parts[] = {{"turnround", turnround}, {"barriers", barriers}, {"rings", rings}};
  for (auto& part : parts) if (argc < 2 || !strcmp(argv[1], part.name)) part.run(p.multiProcessorCount);
}
