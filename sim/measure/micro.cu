// Microbenchmarks of one GPU: latency and bandwidth by level and footprint, shared memory, tensor cores, launches, the host link.
// Usage: micro prop | latency | bandwidth | shared | tensor | launch | link   (CSV on standard output: bench,param1,param2,value,unit)
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)
static cudaDeviceProp prop;
static double now_us() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
template <class T> static T* device(size_t n) { T* p; CK(cudaMalloc(&p, n * sizeof(T))); CK(cudaMemset(p, 0, n * sizeof(T))); return p; }
template <class F> static double events_ms(F work) {
  cudaEvent_t e0, e1; float ms; CK(cudaEventCreate(&e0)); CK(cudaEventCreate(&e1));
  CK(cudaEventRecord(e0)); work(); CK(cudaEventRecord(e1)); CK(cudaDeviceSynchronize()); CK(cudaGetLastError()); CK(cudaEventElapsedTime(&ms, e0, e1)); return ms;
}
// the cycles that a kernel leaves in *cycles, the second time it runs
template <class F> static double cycles_of(long long* cycles, F launch) { long long h; for (int r = 0; r < 2; r++) { launch(); CK(cudaDeviceSynchronize()); } CK(cudaMemcpy(&h, cycles, 8, cudaMemcpyDeviceToHost)); return h; }

// ---- latency: one thread follows a random cycle of 128 B lines ----
template <bool CG> __device__ uint32_t follow(const uint32_t* p) { uint32_t v; if (CG) asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p)); else asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(v) : "l"(p)); return v; }
template <bool CG> __global__ void chase(const uint32_t* next, int steps, uint32_t* sink, long long* cycles) {
  uint32_t at = 0; for (int i = 0; i < 64; i++) at = follow<CG>(next + at);
  long long c0 = clock64(); for (int i = 0; i < steps; i++) at = follow<CG>(next + at);
  *cycles = clock64() - c0; *sink = at;
}
__global__ void chase_shared(int steps, uint32_t* sink, long long* cycles) {
  __shared__ uint32_t s[1024]; for (int i = threadIdx.x; i < 1024; i += blockDim.x) s[i] = (i + 33) % 1024;
  __syncthreads(); uint32_t base = (uint32_t)__cvta_generic_to_shared(s), at = 0; long long c0 = clock64();
  for (int i = 0; i < steps; i++) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(at) : "r"(base + at * 4));
  *cycles = clock64() - c0; *sink = at;
}
__global__ void touch(const uint32_t* p, size_t n, uint32_t* sink) { uint32_t x = 0; for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) x += p[i]; if (x == 12345) *sink = x; }
static void latency() {
  const size_t most = 4ul << 30, l2 = prop.l2CacheSize; uint32_t *data = device<uint32_t>(most / 4), *sink = device<uint32_t>(1); char* other = device<char>(1ul << 30); long long* cycles = device<long long>(1); std::mt19937 random(1);
  for (bool cg : {false, true}) for (size_t kib : {16, 128, 192, 512, 2048, 8192, 16384, 24576, 32768, 49152, 65536, 98304, 262144, 1048576, 4194304}) {
    size_t bytes = kib << 10, n = bytes / 128; std::vector<uint32_t> order(n), next(n * 32); std::iota(order.begin(), order.end(), 0); std::shuffle(order.begin() + 1, order.end(), random);
    for (size_t i = 0; i < n; i++) next[(size_t)order[i] * 32] = order[(i + 1) % n] * 32;
    CK(cudaMemcpy(data, next.data(), bytes, cudaMemcpyHostToDevice)); CK(cudaMemset(other, 0, 1ul << 30));
    int steps = (int)std::min<size_t>(std::max<size_t>(n, 4096), 200000); auto go = [&] { if (cg) chase<true><<<1, 1>>>(data, steps, sink, cycles); else chase<false><<<1, 1>>>(data, steps, sink, cycles); };
    if (bytes <= l2 / 2) touch<<<prop.multiProcessorCount * 4, 512>>>(data, bytes / 4, sink);
    if (bytes <= 2 * l2) go();
    double ms = events_ms(go); long long h; CK(cudaMemcpy(&h, cycles, 8, cudaMemcpyDeviceToHost));
    printf("latency_%s,footprint=%zu,iters=%d,%.1f,cycles\nlatency_%s_ns,footprint=%zu,iters=%d,%.1f,ns\n", cg ? "cg" : "ca", bytes, steps, (double)h / steps, cg ? "cg" : "ca", bytes, steps, ms * 1e6 / (steps + 64));
  }
  printf("smem_latency,,,%.2f,cycles\n", cycles_of(cycles, [&] { chase_shared<<<1, 32>>>(4096, sink, cycles); }) / 4096);
}

// ---- bandwidth of L2 and HBM: the grid walks the footprint, 4 x 16 B a thread in flight ----
__device__ uint4 load(const uint4* p) { uint4 v; asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p)); return v; }
__device__ uint32_t folded(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }  // all of it: the compiler narrows a load of which a part is used
__global__ void read_all(const uint4* p, size_t n, int reps, uint32_t* sink) {
  uint32_t x = 0; size_t first = blockIdx.x * (size_t)blockDim.x + threadIdx.x, step = (size_t)gridDim.x * blockDim.x;
  for (int r = 0; r < reps; r++) {
    size_t i = first;
    for (; i + 3 * step < n; i += 4 * step) { uint4 a = load(p + i), b = load(p + i + step), c = load(p + i + 2 * step), d = load(p + i + 3 * step); x += folded(a) ^ folded(b) ^ folded(c) ^ folded(d); }
    for (; i < n; i += step) x += folded(load(p + i));
  }
  if (x == 12345) *sink = x;
}
__global__ void write_all(uint4* p, size_t n) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) p[i] = make_uint4(i, i, i, i); }
__global__ void copy_all(const uint4* a, uint4* b, size_t n) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) b[i] = a[i]; }
static void read_rate(const uint4* data, int blocks, int per_sm, size_t bytes, uint32_t* sink) {
  int reps = bytes >= (1ul << 30) ? (blocks >= prop.multiProcessorCount / 2 ? 8 : 1) : std::max(2, (int)(std::min(blocks * 6e8, 40e9) / bytes));
  read_all<<<blocks * per_sm, 1024>>>(data, bytes / 16, 1, sink);
  double ms = events_ms([&] { read_all<<<blocks * per_sm, 1024>>>(data, bytes / 16, reps, sink); });
  printf("read_bw,blocks=%d;per_sm=%d,footprint=%zu,%.1f,GB/s\n", blocks, per_sm, bytes, bytes / 1e6 * reps / ms);
}
static void bandwidth() {
  const size_t most = 4ul << 30, l2 = 12ul << 20, hbm = 1ul << 30; uint4 *a = device<uint4>(most / 16), *b = device<uint4>(most / 16); uint32_t* sink = device<uint32_t>(1); int n = prop.multiProcessorCount;
  for (int blocks : {1, 2, 4, 6, 7, 8, 12, 16, 24, 32, 48}) if (blocks < n / 2) for (size_t bytes : {l2, hbm}) read_rate(a, blocks, 1, bytes, sink);
  for (int blocks : {n / 2, n * 3 / 4, n}) for (size_t mib : {1, 4, 12, 20, 28, 40, 56, 80, 160, 1024, 4096}) for (int per_sm : {1, 2}) if (per_sm == 1 || blocks == n) read_rate(a, blocks, per_sm, mib << 20, sink);
  auto repeat = [&](auto launch) { launch(); return events_ms([&] { for (int i = 0; i < 10; i++) launch(); }); };
  printf("write_bw,,footprint=%zu,%.1f,GB/s\n", most, most * 10 / 1e6 / repeat([&] { write_all<<<n * 4, 512>>>(a, most / 16); }));
  printf("copy_bw_rw,,footprint=%zu,%.1f,GB/s\n", most, most * 20 / 1e6 / repeat([&] { copy_all<<<n * 4, 512>>>(a, b, most / 16); }));
}

// ---- shared memory: 1,024 threads read words `stride` apart, 16 B each, or 8 x 8 matrices ----
__global__ void shared_words(int iters, int stride, uint32_t* sink, long long* cycles) {
  extern __shared__ uint32_t s[]; for (int i = threadIdx.x; i < 8192; i += blockDim.x) s[i] = i;
  __syncthreads(); uint32_t p = (uint32_t)__cvta_generic_to_shared(s) + threadIdx.x * stride % 8192 * 4, x = 0; long long c0 = clock64();
  for (int i = 0; i < iters; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) { uint32_t v; asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(v) : "r"(p) : "memory"); x += v * (2 * j + 1); }
  __syncthreads(); if (threadIdx.x == 0) *cycles = clock64() - c0; if (x == 12345) *sink = x;
}
template <bool MATRIX> __global__ void shared_wide(int iters, uint32_t* sink, long long* cycles) {
  extern __shared__ uint32_t s[]; for (int i = threadIdx.x; i < 8192; i += blockDim.x) s[i] = i;
  __syncthreads(); uint32_t p = (uint32_t)__cvta_generic_to_shared(s) + threadIdx.x * 16 % 32768, x = 0; long long c0 = clock64();
  for (int i = 0; i < iters; i++)
#pragma unroll
    for (int j = 0; j < 2; j++) {
      uint32_t a, b, c, d;
      if (MATRIX) asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(p) : "memory");
      else asm volatile("ld.volatile.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(p) : "memory");
      x += a + 3 * b + 5 * c + 7 * d;
    }
  __syncthreads(); if (threadIdx.x == 0) *cycles = clock64() - c0; if (x == 12345) *sink = x;
}
static void shared() {
  uint32_t* sink = device<uint32_t>(1); long long* cycles = device<long long>(1); const double iters = 1000;
  for (int stride : {1, 2, 4, 8, 16, 32}) printf("smem_ld32,stride_words=%d,,%.2f,bytes/cycle/SM\n", stride, iters * 4 * 1024 * 4 / cycles_of(cycles, [&] { shared_words<<<1, 1024, 32768>>>((int)iters, stride, sink, cycles); }));
  printf("smem_ld128,,,%.2f,bytes/cycle/SM\n", iters * 2 * 1024 * 16 / cycles_of(cycles, [&] { shared_wide<false><<<1, 1024, 32768>>>((int)iters, sink, cycles); }));
  printf("smem_ldmatrix_x4,,,%.2f,bytes/cycle/SM\n", iters * 2 * 1024 * 16 / cycles_of(cycles, [&] { shared_wide<true><<<1, 1024, 32768>>>((int)iters, sink, cycles); }));
}

// ---- tensor cores: mma.sync from registers, `CHAINS` accumulators a warp; wgmma from shared memory ----
enum Type { BF16, FP16, TF32, INT8, FP8 };
static const char* TYPE[] = {"bf16", "fp16", "tf32", "int8", "e4m3"};
static int k_of(Type t) { return t == TF32 ? 8 : t == INT8 || t == FP8 ? 32 : 16; }
#define MMA(shape, reg, D) asm volatile("mma.sync.aligned." shape " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+" reg(D[0]), "+" reg(D[1]), "+" reg(D[2]), "+" reg(D[3]) : "r"(1), "r"(2), "r"(3), "r"(4), "r"(5), "r"(6))
template <Type T, int CHAINS> __global__ void mma_sync(int iters, float* sink, long long* cycles) {
  float d[CHAINS][4] = {}; int e[CHAINS][4] = {}; __syncthreads(); long long c0 = clock64();
  for (int i = 0; i < iters; i++)
#pragma unroll
    for (int c = 0; c < CHAINS; c++) {
      if (T == BF16) MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "f", d[c]); if (T == FP16) MMA("m16n8k16.row.col.f32.f16.f16.f32", "f", d[c]);
      if (T == TF32) MMA("m16n8k8.row.col.f32.tf32.tf32.f32", "f", d[c]); if (T == INT8) MMA("m16n8k32.row.col.s32.s8.s8.s32", "r", e[c]);
    }
  __syncthreads(); long long c1 = clock64(); float x = 0; for (int c = 0; c < CHAINS; c++) for (int j = 0; j < 4; j++) x += d[c][j] + e[c][j];
  if (x == 1.25f) *sink = x; if (threadIdx.x == 0 && blockIdx.x == 0) *cycles = c1 - c0;
}
template <Type T> static void mma_rates(bool all) {
  float* sink = device<float>(1); long long* cycles = device<long long>(1); const double iters = 1000, flop = 2.0 * 16 * 8 * k_of(T);
  auto say = [&](int warps, int chains, double c) { printf("mma_sync_m16n8k%d_%s,warps=%d,chains=%d,%.2f,flop/cycle/SM\n", k_of(T), TYPE[T], warps, chains, iters * chains * warps * flop / c); };
  for (int warps : {1, 4, 8, 16}) {
    if (!all && warps != 16) continue;
    say(warps, 1, cycles_of(cycles, [&] { mma_sync<T, 1><<<1, warps * 32>>>((int)iters, sink, cycles); })); say(warps, 2, cycles_of(cycles, [&] { mma_sync<T, 2><<<1, warps * 32>>>((int)iters, sink, cycles); }));
    say(warps, 4, cycles_of(cycles, [&] { mma_sync<T, 4><<<1, warps * 32>>>((int)iters, sink, cycles); })); say(warps, 8, cycles_of(cycles, [&] { mma_sync<T, 8><<<1, warps * 32>>>((int)iters, sink, cycles); }));
  }
}
// fp64: m8n8k4, and m16n8k16 of Hopper
#define DMMA8(D) asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+d"(D[0]), "+d"(D[1]) : "d"(1.5), "d"(0.5))
#define DMMA16(D) asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%4,%4,%4,%4,%4,%4,%4}, {%5,%5,%5,%5}, {%0,%1,%2,%3};" : "+d"(D[0]), "+d"(D[1]), "+d"(D[2]), "+d"(D[3]) : "d"(1.5), "d"(0.5))
template <bool LARGE, int CHAINS> __global__ void mma_fp64(int iters, float* sink, long long* cycles) {
  double d[CHAINS][4] = {}; __syncthreads(); long long c0 = clock64();
  for (int i = 0; i < iters; i++)
#pragma unroll
    for (int c = 0; c < CHAINS; c++) if (LARGE) DMMA16(d[c]); else DMMA8(d[c]);
  __syncthreads(); long long c1 = clock64(); double x = 0; for (int c = 0; c < CHAINS; c++) for (int j = 0; j < 4; j++) x += d[c][j];
  if (x == 1.25) *sink = x; if (threadIdx.x == 0 && blockIdx.x == 0) *cycles = c1 - c0;
}
template <bool LARGE> static void fp64_rates() {
  float* sink = device<float>(1); long long* cycles = device<long long>(1); const double iters = 1000, flop = LARGE ? 4096 : 512;
  auto say = [&](int warps, int chains, double c) { printf("mma_sync_m%dn8k%d_fp64,warps=%d,chains=%d,%.2f,flop/cycle/SM\n", LARGE ? 16 : 8, LARGE ? 16 : 4, warps, chains, iters * chains * warps * flop / c); };
  for (int warps : {4, 8, 16}) {
    say(warps, 1, cycles_of(cycles, [&] { mma_fp64<LARGE, 1><<<1, warps * 32>>>((int)iters, sink, cycles); }));
    say(warps, 4, cycles_of(cycles, [&] { mma_fp64<LARGE, 4><<<1, warps * 32>>>((int)iters, sink, cycles); }));
  }
}
#define F4(c, i) "+" c(d[i]), "+" c(d[i + 1]), "+" c(d[i + 2]), "+" c(d[i + 3])
#define F16(c, i) F4(c, i), F4(c, i + 4), F4(c, i + 8), F4(c, i + 12)
#define F32(c, i) F16(c, i), F16(c, i + 16)
#define F64(c, i) F32(c, i), F32(c, i + 32)
#define R32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define R64 R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define R128 R64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA(shape, regs, a, b, outs, tail) asm volatile("wgmma.mma_async.sync.aligned." shape " {" regs "}, %" a ", %" b ", 1" tail ";" : outs : "l"(da), "l"(db))
template <Type T, int N> __device__ void one_wgmma(float (&d)[128], uint64_t da, uint64_t db) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define OUT128 F64("f", 0), F64("f", 64)
  if (T == BF16 && N == 64) WGMMA("m64n64k16.f32.bf16.bf16", R32, "32", "33", F32("f", 0), ", 1, 1, 0, 0");
  if (T == BF16 && N == 128) WGMMA("m64n128k16.f32.bf16.bf16", R64, "64", "65", F64("f", 0), ", 1, 1, 0, 0");
  if (T == BF16 && N == 256) WGMMA("m64n256k16.f32.bf16.bf16", R128, "128", "129", OUT128, ", 1, 1, 0, 0");
  if (T == FP16 && N == 256) WGMMA("m64n256k16.f32.f16.f16", R128, "128", "129", OUT128, ", 1, 1, 0, 0");
  if (T == TF32 && N == 256) WGMMA("m64n256k8.f32.tf32.tf32", R128, "128", "129", OUT128, ", 1, 1");
  if (T == FP8 && N == 256) WGMMA("m64n256k32.f32.e4m3.e4m3", R128, "128", "129", OUT128, ", 1, 1");
#endif
}
__device__ uint64_t descriptor(uint32_t addr) { return (uint64_t)((addr & 0x3FFFF) >> 4) | (8ull << 16) | (16ull << 32); }  // no swizzle: core matrices of 128 B
template <Type T, int N> __global__ void __launch_bounds__(256, 1) wgmma(int iters, int wait_each, float* sink, long long* cycles) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t sm[]; for (int i = threadIdx.x; i < 16384; i += blockDim.x) ((uint32_t*)sm)[i] = 0x3c003c00u + i * 7;
  __syncthreads(); asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  uint32_t s = (uint32_t)__cvta_generic_to_shared(sm); uint64_t da = descriptor(s + threadIdx.x / 128 * 8192), db = descriptor(s + 16384); float d[128];
#pragma unroll
  for (int i = 0; i < 128; i++) d[i] = 0;
  __syncthreads(); long long c0 = clock64();
  for (int i = 0; i < iters; i++) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 4; k++) one_wgmma<T, N>(d, da, db);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    if (wait_each) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); else asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); __syncthreads(); long long c1 = clock64(); float x = 0;
#pragma unroll
  for (int i = 0; i < 128; i++) x += d[i];
  if (x == 1.25f) *sink = x; if (threadIdx.x == 0 && blockIdx.x == 0) *cycles = c1 - c0;
#endif
}
template <Type T, int N> static void wgmma_rates() {
  float* sink = device<float>(1); long long* cycles = device<long long>(1); CK(cudaFuncSetAttribute(wgmma<T, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
  for (int threads : {128, 256}) for (int wait : {0, 1}) for (int blocks : {1, prop.multiProcessorCount})
    printf("wgmma_m64n%dk%d_%s_cycles_per_inst,warpgroups=%d,wait_each_group_of_4=%d;blocks=%d,%.3f,cycles\n", N, k_of(T), TYPE[T], threads / 128, wait, blocks, cycles_of(cycles, [&] { wgmma<T, N><<<blocks, threads, 65536>>>(2000, wait, sink, cycles); }) / (2000.0 * 4 * (threads / 128)));
}
// ---- values of e4m3 to fp16, and by fp32 to bf16, two at a time; 8 chains a thread ----
template <bool BFLOAT> __global__ void convert_e4m3(int iters, float* sink, long long* cycles) {
#if __CUDA_ARCH__ >= 890
  uint16_t v[8]; for (int c = 0; c < 8; c++) v[c] = threadIdx.x * 17 + c; uint32_t out = 0; __syncthreads(); long long c0 = clock64();
  for (int i = 0; i < iters; i++)
#pragma unroll
    for (int c = 0; c < 8; c++) {
      uint32_t h; asm volatile("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(v[c]));
      if (BFLOAT) asm volatile("{\n.reg .b16 lo, hi;\n.reg .f32 a, b;\nmov.b32 {lo, hi}, %0;\ncvt.f32.f16 a, lo;\ncvt.f32.f16 b, hi;\ncvt.rn.bf16x2.f32 %0, b, a;\n}" : "+r"(h));
      v[c] = (uint16_t)h;
    }
  __syncthreads(); long long c1 = clock64(); for (int c = 0; c < 8; c++) out ^= v[c];
  if (out == 12345) *sink = out; if (threadIdx.x == 0 && blockIdx.x == 0) *cycles = c1 - c0;
#endif
}
static void convert_rates() {
  float* sink = device<float>(1); long long* cycles = device<long long>(1); const double values = 1000.0 * 8 * 2 * 32;
  for (int warps : {4, 8, 16}) {
    printf("convert_e4m3_fp16,warps=%d,,%.2f,values/cycle/SM\n", warps, values * warps / cycles_of(cycles, [&] { convert_e4m3<false><<<1, warps * 32>>>(1000, sink, cycles); }));
    printf("convert_e4m3_bf16,warps=%d,,%.2f,values/cycle/SM\n", warps, values * warps / cycles_of(cycles, [&] { convert_e4m3<true><<<1, warps * 32>>>(1000, sink, cycles); }));
  }
}
static void tensor() {
  mma_rates<BF16>(true); mma_rates<FP16>(false); mma_rates<TF32>(false); mma_rates<INT8>(false);
  fp64_rates<false>(); fp64_rates<true>();
  if (prop.major * 10 + prop.minor >= 89) convert_rates();
  if (prop.major != 9) return;
  wgmma_rates<BF16, 64>(); wgmma_rates<BF16, 128>(); wgmma_rates<BF16, 256>(); wgmma_rates<FP16, 256>(); wgmma_rates<TF32, 256>(); wgmma_rates<FP8, 256>();
}

// ---- launches of kernels that do nothing ----
__global__ void nop() {}
static void launch() {
  cudaStream_t s; CK(cudaStreamCreate(&s));
  for (int r = 0; r < 2; r++) {
    CK(cudaStreamSynchronize(s)); double t0 = now_us(); for (int i = 0; i < 20000; i++) nop<<<1, 32, 0, s>>>(); CK(cudaStreamSynchronize(s)); double t1 = now_us();
    for (int i = 0; i < 2000; i++) { nop<<<1, 32, 0, s>>>(); CK(cudaStreamSynchronize(s)); }
    if (r) printf("launch_stream_back_to_back,,,%.3f,us\nlaunch_and_sync,,,%.3f,us\n", (t1 - t0) / 20000, (now_us() - t1) / 2000);
  }
  for (int per_sm : {0, 1, 10, 100}) {
    int blocks = per_sm ? per_sm * prop.multiProcessorCount : 1; cudaGraph_t graph; cudaGraphExec_t ready; cudaEvent_t e0, e1; float ms; CK(cudaEventCreate(&e0)); CK(cudaEventCreate(&e1));
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal)); for (int i = 0; i < 1000; i++) nop<<<blocks, 256, 0, s>>>(); CK(cudaStreamEndCapture(s, &graph)); CK(cudaGraphInstantiate(&ready, graph, 0));
    CK(cudaGraphLaunch(ready, s)); CK(cudaStreamSynchronize(s)); CK(cudaEventRecord(e0, s)); for (int i = 0; i < 5; i++) CK(cudaGraphLaunch(ready, s)); CK(cudaEventRecord(e1, s)); CK(cudaStreamSynchronize(s)); CK(cudaEventElapsedTime(&ms, e0, e1));
    printf("graph_kernel_to_kernel,blocks=%d,,%.3f,us\n", blocks, ms / 5);
  }
}

// ---- copies between host and device ----
static void link() {
  const size_t most = 1ul << 30; void *pinned, *pageable = malloc(most); char* dev = device<char>(most); cudaStream_t s; CK(cudaStreamCreate(&s)); CK(cudaMallocHost(&pinned, most)); memset(pageable, 1, most); memset(pinned, 1, most);
  for (size_t n : {4ul << 10, 64ul << 10, 1ul << 20, 16ul << 20, 256ul << 20, 1ul << 30}) for (bool pin : {true, false}) for (bool back : {false, true}) {
    void *host = pin ? pinned : pageable, *to = back ? host : dev, *from = back ? (void*)dev : host; cudaMemcpyKind kind = back ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice; int reps = n < (16ul << 20) ? 200 : 4;
    CK(cudaMemcpy(to, from, n, kind)); CK(cudaDeviceSynchronize()); double t0 = now_us(); for (int i = 0; i < reps; i++) CK(cudaMemcpyAsync(to, from, n, kind, s)); CK(cudaStreamSynchronize(s)); double us = (now_us() - t0) / reps;
    printf("%s_%s,bytes=%zu,us=%.2f,%.2f,GB/s\n", back ? "d2h" : "h2d", pin ? "pinned" : "pageable", n, us, n / us / 1e3);
  }
}
static void properties() {
  int clock = 0, memory_clock = 0; CK(cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0)); CK(cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, 0));
  printf("prop,name,,%s,\nprop,sms,,%d,\nprop,l2,,%d,bytes\nprop,smem_per_sm,,%zu,bytes\nprop,smem_optin,,%zu,bytes\nprop,regs_per_sm,,%d,\n", prop.name, prop.multiProcessorCount, prop.l2CacheSize, prop.sharedMemPerMultiprocessor, prop.sharedMemPerBlockOptin, prop.regsPerMultiprocessor);
  printf("prop,clock,,%d,kHz\nprop,memclock,,%d,kHz\nprop,bus,,%d,bits\n", clock, memory_clock, prop.memoryBusWidth);
}
int main(int argc, char** argv) {
  CK(cudaGetDeviceProperties(&prop, 0)); const struct { const char* name; void (*run)(); } parts[] = {{"prop", properties}, {"latency", latency}, {"bandwidth", bandwidth}, {"shared", shared}, {"tensor", tensor}, {"launch", launch}, {"link", link}};
  for (auto& part : parts) if (argc < 2 || !strcmp(argv[1], part.name)) part.run();
}
