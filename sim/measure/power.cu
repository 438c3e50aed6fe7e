// Board energy while one level of the memory hierarchy, or one kind of arithmetic, works at a known rate.
// Each bench keeps the GPU busy with kernels of about 2 ms and reads NVML's energy counter, edge to edge, over a steady window.
// Usage: power [SECONDS [BENCH]]   (CSV on standard output; SECONDS of one window, default 2; BENCH runs only names containing it)
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <string>
#include <thread>
#include <vector>
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)

// ---- device code: every kernel repeats its body `iters` times and leaves cycles and nanoseconds of block 0 behind ----
struct Args { char* data; size_t bytes; int iters; long long* stamp; float* sink; };
__device__ long long nanoseconds() { long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
struct Stamp {
  const Args& a; long long c0, t0;
  __device__ explicit Stamp(const Args& args) : a(args) { c0 = clock64(); t0 = nanoseconds(); }
  __device__ ~Stamp() { if (blockIdx.x == 0 && threadIdx.x == 0) { a.stamp[0] = clock64() - c0; a.stamp[1] = nanoseconds() - t0; } }
};
__device__ uint4 load_cg(const void* p) { uint4 v; asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p)); return v; }
__device__ uint4 load_ca(const void* p) { uint4 v; asm volatile("ld.global.ca.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p)); return v; }
__device__ uint4 load_shared(uint32_t p) { uint4 v; asm volatile("ld.volatile.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(p)); return v; }

__device__ uint32_t folded(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }  // all of it: the compiler narrows a load of which a part is used

__global__ void spin(Args a) { Stamp s(a); int x = threadIdx.x; for (int i = 0; i < a.iters; i++) asm volatile("mad.lo.s32 %0, %0, %0, %1;" : "+r"(x) : "r"(i)); if (x == 12345) *a.sink = x; }
__global__ void fp32_fma(Args a) {
  Stamp s(a); float x[8], m = ((const float*)a.data)[threadIdx.x], b = ((const float*)a.data)[threadIdx.x + 1024];
  for (int j = 0; j < 8; j++) x[j] = j;
  for (int i = 0; i < a.iters; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x[j]) : "f"(m), "f"(b));
  if (x[0] + x[1] + x[2] + x[3] + x[4] + x[5] + x[6] + x[7] == 1.25f) *a.sink = 1;
}
__global__ void shared_read(Args a) {  // 32 KiB a CTA, 4 x 16 B a thread and iteration
  extern __shared__ uint4 tile[]; for (int i = threadIdx.x; i < 2048; i += blockDim.x) tile[i] = ((const uint4*)a.data)[i];
  __syncthreads(); Stamp s(a); uint32_t base = (uint32_t)__cvta_generic_to_shared(tile), x = 0;
  for (int i = 0; i < a.iters; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) x ^= folded(load_shared(base + ((threadIdx.x + (j * 4 + i) * 128) & 2047) * 16));
  if (x == 12345) *a.sink = x;
}
__global__ void l1_read(Args a) {  // 16 KiB a CTA out of L1
  Stamp s(a); uint32_t x = 0; const char* p = a.data + (blockIdx.x * 16384l) % a.bytes;
  for (int i = 0; i < a.iters; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) x ^= folded(load_ca(p + ((threadIdx.x + (j * 4 + i) * 64) & 1023) * 16));
  if (x == 12345) *a.sink = x;
}
__global__ void read_all(Args a) {  // the grid walks all bytes, 4 x 16 B a thread in flight
  Stamp s(a); uint32_t x = 0; size_t n = a.bytes / 16, step = (size_t)gridDim.x * blockDim.x; const uint4* p = (const uint4*)a.data;
  for (int r = 0; r < a.iters; r++)
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i + 3 * step < n; i += 4 * step) {
      uint4 v = load_cg(p + i), w = load_cg(p + i + step), y = load_cg(p + i + 2 * step), z = load_cg(p + i + 3 * step);
      x ^= folded(v) ^ folded(w) ^ folded(y) ^ folded(z);
    }
  if (x == 12345) *a.sink = x;
}
__global__ void write_all(Args a) {
  Stamp s(a); size_t n = a.bytes / 16, step = (size_t)gridDim.x * blockDim.x; uint4* p = (uint4*)a.data;
  uint32_t h = (threadIdx.x + blockIdx.x * blockDim.x) * 2654435761u;
  for (int r = 0; r < a.iters; r++)
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += step, h = h * 1664525u + 1013904223u) p[i] = make_uint4(h, h ^ 0x5bd1e995u, h * 7, ~h);
}
__global__ void mma_sync(Args a) {  // 8 independent accumulators a warp, 4 A and 4 B fragments in turn
  Stamp s(a); uint32_t A[4][4], B[4][2]; float d[8][4] = {}; const uint32_t* src = (const uint32_t*)a.data + threadIdx.x * 24;
#pragma unroll
  for (int f = 0; f < 4; f++) { for (int j = 0; j < 4; j++) A[f][j] = src[f * 6 + j]; for (int j = 0; j < 2; j++) B[f][j] = src[f * 6 + 4 + j]; }
  for (int i = 0; i < a.iters; i++) {
#pragma unroll
    for (int c = 0; c < 8; c++)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" : "+f"(d[c][0]), "+f"(d[c][1]), "+f"(d[c][2]), "+f"(d[c][3]) : "r"(A[c & 3][0]), "r"(A[c & 3][1]), "r"(A[c & 3][2]), "r"(A[c & 3][3]), "r"(B[(c + c / 4) & 3][0]), "r"(B[(c + c / 4) & 3][1]));
    if ((i & 63) == 63)
#pragma unroll
      for (int c = 0; c < 8; c++) for (int j = 0; j < 4; j++) d[c][j] = 0;
  }
  float x = 0; for (int c = 0; c < 8; c++) for (int j = 0; j < 4; j++) x += d[c][j];
  if (x == 1.25f) *a.sink = x;
}
__global__ void mma_fp64(Args a) {  // as mma_sync, in double precision: 4 accumulators a warp
  Stamp s(a); double A[4][8], B[4][4], d[4][4] = {}; const double* src = (const double*)a.data + threadIdx.x * 12;
#pragma unroll
  for (int f = 0; f < 4; f++) { for (int j = 0; j < 8; j++) A[f][j] = src[(f * 8 + j) % 12]; for (int j = 0; j < 4; j++) B[f][j] = src[(f * 4 + j + 5) % 12]; }
  for (int i = 0; i < a.iters; i++) {
#pragma unroll
    for (int c = 0; c < 4; c++)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3},{%4,%5,%6,%7,%8,%9,%10,%11},{%12,%13,%14,%15},{%0,%1,%2,%3};" : "+d"(d[c][0]), "+d"(d[c][1]), "+d"(d[c][2]), "+d"(d[c][3]) : "d"(A[c][0]), "d"(A[c][1]), "d"(A[c][2]), "d"(A[c][3]), "d"(A[c][4]), "d"(A[c][5]), "d"(A[c][6]), "d"(A[c][7]), "d"(B[c][0]), "d"(B[c][1]), "d"(B[c][2]), "d"(B[c][3]));
    if ((i & 63) == 63)
#pragma unroll
      for (int c = 0; c < 4; c++) for (int j = 0; j < 4; j++) d[c][j] = 0;
  }
  double x = 0; for (int c = 0; c < 4; c++) for (int j = 0; j < 4; j++) x += d[c][j];
  if (x == 1.25) *a.sink = 1;
}
#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(i) F4(i), F4(i + 4), F4(i + 8), F4(i + 12)
#define F64(i) F16(i), F16(i + 16), F16(i + 32), F16(i + 48)
#define R64 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define R128 R64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA(shape, tail) asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned." shape " {" R128 "}, %128, %129, p, 1, 1" tail ";\n}" : F64(0), F64(64) : "l"(da), "l"(db), "r"(keep))
__device__ uint64_t descriptor(uint32_t addr) { return (uint64_t)((addr & 0x3FFFF) >> 4) | (8ull << 16) | (16ull << 32); }  // no swizzle: core matrices of 128 B
template <bool FP8> __global__ void __launch_bounds__(256, 1) wgmma(Args a) {  // 2 warpgroups, m64n256 each, operands from 4 stages of shared memory (K-slices of 32 bytes)
  extern __shared__ __align__(1024) char sm[];
  for (int i = threadIdx.x; i < 4 * 49152 / 16; i += blockDim.x) ((uint4*)sm)[i] = ((const uint4*)a.data)[i];
  __syncthreads(); asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); Stamp s(a);
  uint32_t base = (uint32_t)__cvta_generic_to_shared(sm), wg = threadIdx.x / 128; float d[128];
#pragma unroll
  for (int i = 0; i < 128; i++) d[i] = 0;
  for (int i = 0; i < a.iters; i++) {
    uint32_t stage = base + (i & 3) * 49152; 
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int keep = (i & 63) | k;  // the sum starts anew every 64 iterations
      uint64_t da = descriptor(stage + wg * 8192 + k * 2048), db = descriptor(stage + 16384 + k * 8192);
      if (FP8) WGMMA("m64n256k32.f32.e4m3.e4m3", ""); else WGMMA("m64n256k16.f32.bf16.bf16", ", 0, 0");
    }
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  float x = 0;
#pragma unroll
  for (int i = 0; i < 128; i++) x += d[i];
  if (x == 1.25f) *a.sink = x;
}
// ---- data: what operands and memory hold ----
enum Data { RANDOM_BITS, ZEROS, NORMAL_BF16, TERNARY_BF16, NORMAL_E4M3, NORMAL_FP64 };
__device__ uint32_t hash(uint64_t i) { i ^= i >> 33; i *= 0xff51afd7ed558ccdull; i ^= i >> 33; i *= 0xc4ceb9fe1a85ec53ull; i ^= i >> 33; return (uint32_t)i; }
__device__ uint32_t bf16_of(float x) { return __float_as_uint(x) >> 16; }
__device__ float normal_of(uint32_t h) { float u = ((h & 0xffff) + 0.5f) / 65536, v = (h >> 16) / 65536.0f; return sqrtf(-2 * logf(u)) * cospif(2 * v); }
__device__ uint32_t e4m3_of(float x) { uint16_t v; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(0.f), "f"(x)); return v & 0xff; }
__global__ void fill(uint32_t* p, size_t n, Data kind) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    uint32_t h = hash(2 * i), g = hash(2 * i + 1), v = 0;
    if (kind == RANDOM_BITS) v = h;
    if (kind == NORMAL_BF16) v = bf16_of(normal_of(h)) | bf16_of(normal_of(g)) << 16;
    if (kind == TERNARY_BF16) v = bf16_of((float)(h % 3) - 1) | bf16_of((float)(g % 3) - 1) << 16;
    if (kind == NORMAL_E4M3) for (int j = 0; j < 4; j++) v |= e4m3_of(normal_of(hash(4 * i + j))) << (8 * j);
    if (kind == NORMAL_FP64) { double x = normal_of(hash(i / 2)) * (1 + 1e-9 * (hash(i / 2 + 7) >> 2)); v = (uint32_t)(__double_as_longlong(x) >> (i % 2 * 32)); }
    p[i] = v;
  }
}

// ---- host: sampling, windows ----
struct Nvml {  // the few calls needed, found at run time: the header is not installed everywhere
  void* device = nullptr; int (*energy)(void*, unsigned long long*); int (*power)(void*, unsigned*); int (*temperature)(void*, int, unsigned*); int (*clock)(void*, int, unsigned*);
  template <class F> static void find(F& f, const char* name) {
    static void* lib = dlopen("libnvidia-ml.so.1", RTLD_NOW); f = lib ? (F)dlsym(lib, name) : nullptr;
    if (!f) { fprintf(stderr, "NVML lacks %s\n", name); exit(1); }
  }
  Nvml() {
    int (*init)(); int (*handle)(unsigned, void**);
    find(init, "nvmlInit_v2"); find(handle, "nvmlDeviceGetHandleByIndex_v2"); find(energy, "nvmlDeviceGetTotalEnergyConsumption");
    find(power, "nvmlDeviceGetPowerUsage"); find(temperature, "nvmlDeviceGetTemperature"); find(clock, "nvmlDeviceGetClockInfo");
    if (init() || handle(0, &device)) { fprintf(stderr, "NVML finds no GPU\n"); exit(1); }
  }
  unsigned long long millijoules() { unsigned long long v = 0; energy(device, &v); return v; }
  double watts() { unsigned v = 0; power(device, &v); return v / 1e3; }
  unsigned celsius() { unsigned v = 0; temperature(device, 0, &v); return v; }
  unsigned sm_mhz() { unsigned v = 0; clock(device, 1, &v); return v; }
};
static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
struct Sample { double t; unsigned long long mj; double watts; };
struct Window { double seconds = 0, joules = 0, begin = 0, end = 0, watts = 0; };
static Window steady(const std::vector<Sample>& all, double from, double to) {  // from the first to the last step of the counter
  Window w; int first = -1, last = -1; double sum = 0; int n = 0;
  for (size_t i = 1; i < all.size(); i++) {
    if (all[i].t < from || all[i].t > to) continue;
    sum += all[i].watts; n++;
    if (all[i].mj != all[i - 1].mj) { if (first < 0) first = i; last = i; }
  }
  if (n) w.watts = sum / n;
  if (first >= 0 && last > first) { w.begin = all[first].t; w.end = all[last].t; w.seconds = w.end - w.begin; w.joules = (all[last].mj - all[first].mj) / 1e3; }
  return w;
}
static Nvml* nvml; static double window_s = 2; static const char* only = "";
static void row(const char* bench, const char* params, const Window& w, double mhz, double rate, const char* unit) {
  printf("%s,%s,%.3f,%.3f,%.2f,%.1f,%.4g,%s,%.2f,%u\n", bench, params, w.seconds, w.joules, w.seconds ? w.joules / w.seconds : 0, mhz, rate, unit, w.watts, nvml->celsius()); fflush(stdout);
}
struct Sampler {
  std::vector<Sample> all; std::atomic<bool> stop{false}; std::thread thread;
  Sampler() : thread([this] { while (!stop) { unsigned long long e = nvml->millijoules(); all.push_back({now(), e, nvml->watts()}); std::this_thread::sleep_for(std::chrono::milliseconds(2)); } }) {}
  void finish() { stop = true; thread.join(); }
};
static void idle(const char* bench) {
  if (!strstr(bench, only)) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(1000)); double t0 = now(); Sampler s;
  std::this_thread::sleep_for(std::chrono::duration<double>(window_s)); s.finish();
  row(bench, "", steady(s.all, t0, now()), nvml->sm_mhz(), 0, "");
}
static char* buffer; static float* sink; static long long* stamps;  // stamps: pinned host memory, two numbers a launch
using Launch = std::function<void(Args)>;
static double milliseconds(const Launch& go, Args a) {
  cudaEvent_t e0, e1; CK(cudaEventCreate(&e0)); CK(cudaEventCreate(&e1)); float ms;
  go(a); CK(cudaEventRecord(e0)); go(a); CK(cudaEventRecord(e1)); CK(cudaDeviceSynchronize()); CK(cudaGetLastError()); CK(cudaEventElapsedTime(&ms, e0, e1)); return ms;
}
// per_iter: bytes or operations of one iteration of the whole grid
static void busy(const char* bench, const std::string& params, const Launch& go, size_t bytes, Data data, double per_iter, const char* unit) {
  if (!strstr(bench, only)) return;
  static size_t filled = 0; static int held = -1;
  if (held != data || filled < bytes) { fill<<<2048, 256>>>((uint32_t*)buffer, bytes / 4, data); CK(cudaDeviceSynchronize()); held = data; filled = bytes; }
  if (strstr(bench, "write")) held = -1;
  Args a{buffer, bytes, 64, stamps, sink}; milliseconds(go, a);
  a.iters = std::max(1, (int)(64 * 2.0 / milliseconds(go, a)));
  const int ring = 4, slots = 4096; cudaEvent_t done[ring]; for (auto& e : done) CK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  std::vector<double> finished; double t0 = now(); Sampler s;
  for (int i = 0; now() - t0 < 0.6 + window_s; i++) {
    if (i >= ring) { CK(cudaEventSynchronize(done[i % ring])); finished.push_back(now()); }
    a.stamp = stamps + 2 * (i % slots); go(a); CK(cudaEventRecord(done[i % ring]));
  }
  double end = now(); s.finish(); CK(cudaDeviceSynchronize()); CK(cudaGetLastError());
  Window w = steady(s.all, t0 + 0.6, end); size_t first = 0, last = 0;
  for (size_t i = 0; i < finished.size(); i++) { if (finished[i] <= w.begin) first = i; if (finished[i] <= w.end) last = i; }
  double cycles = 0, ns = 0; for (size_t i = first; i <= last; i++) { cycles += stamps[2 * (i % slots)]; ns += stamps[2 * (i % slots) + 1]; }
  row(bench, params.c_str(), w, ns ? cycles / ns * 1e3 : 0, last > first ? (last - first) * per_iter * a.iters / (finished[last] - finished[first]) : 0, unit);
}
template <class K> static Launch on(K kernel, int blocks, int threads, int smem = 0) {
  if (smem) CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
  return [=](Args a) { kernel<<<blocks, threads, smem>>>(a); };
}
static std::string label(const char* text, int sms) { return std::string(text) + ";sms=" + std::to_string(sms); }

static void arithmetic(int n) {
  for (int sms : {n, n / 2}) busy("issue", label("warps_per_sm=4", sms), on(spin, sms, 128), 1 << 20, ZEROS, 128.0 * sms, "op/s");
  busy("issue", label("warps_per_sm=32", n), on(spin, n, 1024), 1 << 20, ZEROS, 1024.0 * n, "op/s");
  for (int sms : {n, n / 2}) busy("fp32_fma", label("data=random", sms), on(fp32_fma, sms, 1024), 1 << 20, NORMAL_BF16, 1024.0 * sms * 16, "flop/s");
  const std::pair<Data, const char*> data[] = {{NORMAL_BF16, "data=normal"}, {ZEROS, "data=zeros"}, {TERNARY_BF16, "data=ternary"}};
  for (auto& d : data) busy("mma_sync_bf16", label(d.second, n), on(mma_sync, n, 512), 1 << 20, d.first, 16.0 * n * 8 * 4096, "flop/s");
  busy("mma_sync_bf16", label("data=normal", n / 2), on(mma_sync, n / 2, 512), 1 << 20, NORMAL_BF16, 16.0 * (n / 2) * 8 * 4096, "flop/s");
  for (int sms : {n, n / 2}) busy("mma_fp64", label("data=normal", sms), on(mma_fp64, sms, 512), 1 << 20, NORMAL_FP64, 16.0 * sms * 4 * 4096, "flop/s");
  busy("mma_fp64", label("data=zeros", n), on(mma_fp64, n, 512), 1 << 20, ZEROS, 16.0 * n * 4 * 4096, "flop/s");
  const double flop = 2.0 * 2 * 4 * 64 * 256 * 16;
  for (auto& d : data) for (int sms : {n, n / 2, n / 4}) if (d.first == NORMAL_BF16 || sms == n)
    busy("wgmma_bf16", label(d.second, sms), on(wgmma<false>, sms, 256, 4 * 49152), 1 << 20, d.first, flop * sms, "flop/s");
  for (int sms : {n, n / 2}) busy("wgmma_e4m3", label("data=normal", sms), on(wgmma<true>, sms, 256, 4 * 49152), 1 << 20, NORMAL_E4M3, 2 * flop * sms, "flop/s");
  busy("wgmma_e4m3", label("data=zeros", n), on(wgmma<true>, n, 256, 4 * 49152), 1 << 20, ZEROS, 2 * flop * n, "flop/s");
}
static void memory(int n) {
  const size_t l2 = 24ul << 20, hbm = 4ul << 30; auto walked = [](size_t bytes, int sms) { return bytes / (65536ul * sms) * 65536ul * sms; };  // a whole number of rounds of the grid
  for (auto& d : {std::pair<Data, const char*>{RANDOM_BITS, "data=random"}, {ZEROS, "data=zeros"}}) {
    for (int sms : {n, n / 2}) {
      if (d.first == ZEROS && sms != n) continue;
      busy("shared_read", label(d.second, sms), on(shared_read, sms, 1024, 32768), 1 << 20, d.first, 65536.0 * sms, "bytes/s");
      busy("l1_read", label(d.second, sms), on(l1_read, sms, 1024), 16384ul * n, d.first, 65536.0 * sms, "bytes/s");
      busy("l2_read", label(d.second, sms), on(read_all, sms, 1024), walked(l2, sms), d.first, walked(l2, sms), "bytes/s");
    }
    for (int sms : {n, n / 2, n / 4, n / 8}) {
      if (d.first == ZEROS && sms != n) continue;
      busy("hbm_read", label(d.second, sms), on(read_all, sms, 1024), walked(hbm, sms), d.first, walked(hbm, sms), "bytes/s");
    }
  }
  for (int sms : {n, n / 4}) busy("l2_write", label("data=random", sms), on(write_all, sms, 1024), l2, RANDOM_BITS, (double)l2, "bytes/s");
  for (int sms : {n, n / 4, n / 8}) busy("hbm_write", label("data=random", sms), on(write_all, sms, 1024), hbm, RANDOM_BITS, (double)hbm, "bytes/s");
}
int main(int argc, char** argv) {
  if (argc > 1) window_s = atof(argv[1]);
  if (argc > 2) only = argv[2];
  nvml = new Nvml; printf("bench,params,seconds,joules,mean_watt,sm_mhz,rate,unit,sampled_watt,celsius\n");
  for (int r = 0; r < 2; r++) idle("idle_no_context");
  cudaDeviceProp p; CK(cudaGetDeviceProperties(&p, 0)); CK(cudaMalloc(&buffer, 4ul << 30)); CK(cudaMalloc(&sink, 4)); CK(cudaMallocHost(&stamps, 16 * 4096)); CK(cudaMemset(buffer, 0, 4ul << 30)); CK(cudaDeviceSynchronize());
  for (int r = 0; r < 2; r++) idle("idle_context");
  for (int r = 0; r < 2; r++) { memory(p.multiProcessorCount); arithmetic(p.multiProcessorCount); }
}
