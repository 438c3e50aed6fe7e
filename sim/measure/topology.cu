// Where CTAs land, which SMs share an L2 partition, how long a tile takes to load, and when neighbours share a read.
// Usage: topology place | partition | home | tile | share CASE   (CSV on standard output: bench,param1,param2,value,unit)
#include <cooperative_groups.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <algorithm>
namespace cg = cooperative_groups;
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)
__device__ unsigned smid() { unsigned r; asm volatile("mov.u32 %0, %%smid;" : "=r"(r)); return r; }
__device__ unsigned long long gtime() { unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
__device__ int ldcg(const int* p) { int v; asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }

__global__ void where(int* out, int spin) {
  int b = blockIdx.y * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) out[b] = smid();
  long long c0 = clock64(); while (clock64() - c0 < spin) {}
}

static void place(int sms) {
  int* d; CK(cudaMalloc(&d, 1 << 20)); std::vector<int> h(1 << 18);
  for (int smem : {200 * 1024, 100 * 1024, 50 * 1024}) {
    CK(cudaFuncSetAttribute(where, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    int n = sms * 5;
    where<<<n, 128, smem>>>(d, 20000); CK(cudaDeviceSynchronize());
    CK(cudaMemcpy(h.data(), d, n * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) printf("place,smem=%d,block=%d,%d,smid\n", smem, i, h[i]);
  }
  CK(cudaFuncSetAttribute(where, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  for (auto c : {std::pair<int,int>{1, 2}, {2, 1}, {4, 1}, {1, 4}, {2, 4}, {8, 1}, {16, 1}}) {
    cudaLaunchConfig_t cfg = {}; cfg.blockDim = dim3(128); cfg.dynamicSmemBytes = 200 * 1024;
    cfg.gridDim = c.first == 1 ? dim3(c.second, sms / c.second) : dim3(c.first, sms / c.first / c.second * c.second);
    cudaLaunchAttribute at[1]; at[0].id = cudaLaunchAttributeClusterDimension;
    at[0].val.clusterDim.x = cfg.gridDim.x % c.first ? 1 : c.first; at[0].val.clusterDim.y = c.second; at[0].val.clusterDim.z = 1;
    if (c.first == 1) { at[0].val.clusterDim.x = c.second; at[0].val.clusterDim.y = 1; }
    cfg.attrs = at; cfg.numAttrs = 1;
    int n = cfg.gridDim.x * cfg.gridDim.y;
    CK(cudaLaunchKernelEx(&cfg, where, d, 20000)); CK(cudaDeviceSynchronize());
    CK(cudaMemcpy(h.data(), d, n * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) printf("place_cluster,cluster=%ux%u;grid=%ux%u,block=%d,%d,smid\n", at[0].val.clusterDim.x, at[0].val.clusterDim.y, cfg.gridDim.x, cfg.gridDim.y, i, h[i]);
  }
}

__global__ void read_lines(const int* base, int who, int lines, long stride_ints, int* lat) {
  if (smid() != who || threadIdx.x) return;
  int s = 0;
  for (int i = 0; i < lines; i++) {
    long long t0 = clock64(); int v = ldcg(base + (long)i * stride_ints); s += v;
    asm volatile("" :: "r"(s) : "memory"); long long t1 = clock64() + (s == 123456789);
    if (lat) lat[i] = (int)(t1 - t0);
  }
}
__global__ void atom_lines(int* base, int who, int lines, long stride_ints, int* lat) {
  if (smid() != who || threadIdx.x) return;
  for (int r = 0; r < 2; r++) for (int i = 0; i < lines; i++) {
    long long t0 = clock64(); int v = atomicAdd(base + (long)i * stride_ints, 0);
    asm volatile("" :: "r"(v) : "memory"); long long t1 = clock64() + (v == 123456789); lat[i] = (int)(t1 - t0);
  }
}

static void partition(int sms) {
  const int lines = 512; size_t bytes = 1ull << 31; int *buf, *lat; CK(cudaMalloc(&buf, bytes)); CK(cudaMemset(buf, 0, bytes)); CK(cudaMalloc(&lat, 1 << 20));
  std::vector<int> h(lines); size_t at = 0;
  for (int first : {0, 1, 2, 40}) for (int j = 0; j < sms; j++) {
    const int* p = buf + at; at = (at + 4 * lines * 32 * 4) % (bytes / 4 - 1000000);
    read_lines<<<sms * 2, 32>>>(p, first, lines, 128, nullptr);
    read_lines<<<sms * 2, 32>>>(p, j, lines, 128, lat); CK(cudaDeviceSynchronize());
    CK(cudaMemcpy(h.data(), lat, lines * 4, cudaMemcpyDeviceToHost));
    std::sort(h.begin(), h.end());
    printf("second_reader_latency,first=%d;second=%d,p10;p50;p90,%d;%d;%d,cycles\n", first, j, h[lines / 10], h[lines / 2], h[lines * 9 / 10]);
  }
}

static void home() {
  const int lines = 4096; int *buf, *lat; CK(cudaMalloc(&buf, 64 << 20)); CK(cudaMemset(buf, 0, 64 << 20)); CK(cudaMalloc(&lat, 1 << 20));
  std::vector<int> h(lines);
  for (int sm : {0, 2, 4, 6, 8, 10, 12, 14}) for (int stride : {32, 1024}) {
    atom_lines<<<264, 32>>>(buf, sm, lines, stride, lat); CK(cudaDeviceSynchronize());
    CK(cudaMemcpy(h.data(), lat, lines * 4, cudaMemcpyDeviceToHost));
    if (sm <= 2) { printf("home_trace,sm=%d;stride=%d,first 512,", sm, stride * 4); for (int i = 0; i < 512; i++) printf("%d;", h[i]); printf(",cycles\n"); }
    std::sort(h.begin(), h.end());
    printf("atomic_latency,sm=%d;stride=%d,p1;p10;p25;p50;p75;p90;p99,", sm, stride * 4);
    for (double q : {.01, .1, .25, .5, .75, .9, .99}) printf("%d;", h[(int)(lines * q)]); printf(",cycles\n");
  }
}

// one CTA loads a tile of `rows` x 128 B (row pitch `pitch` bytes) into shared memory with cp.async and waits; repeated over distinct tiles
__global__ void tile_latency(const char* base, int rows, long pitch, long tile_step, long block_step, int tiles, int inflight, int* out, int blocks) {
  extern __shared__ char sm[];
  if (blockIdx.x >= blocks) return;
  unsigned dst = (unsigned)__cvta_generic_to_shared(sm);
  const char* p = base + (long)blockIdx.x * block_step;
  long long tot = 0, mx = 0; long long c0 = clock64();
  for (int t = 0; t < tiles; t += inflight) {
    __syncthreads(); long long t0 = clock64();
    for (int f = 0; f < inflight; f++) for (int i = threadIdx.x; i < rows * 8; i += blockDim.x)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(dst + f * rows * 128 + i * 16), "l"(p + (t + f) * tile_step + (i / 8) * pitch + (i % 8) * 16));
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    __syncthreads(); long long d = clock64() - t0; tot += d; mx = d > mx ? d : mx;
  }
  if (threadIdx.x == 0) { out[2 * blockIdx.x] = (int)(tot / (tiles / inflight)); out[2 * blockIdx.x + 1] = (int)((clock64() - c0) / (tiles / inflight)); }
}
__global__ void bulk_latency(const char* base, int bytes, long tile_step, int tiles, int inflight, int* out, int blocks) {
  extern __shared__ __align__(128) char sm[]; __shared__ __align__(8) unsigned long long bar;
  if (blockIdx.x >= blocks || threadIdx.x) return;
  unsigned dst = (unsigned)__cvta_generic_to_shared(sm), b = (unsigned)__cvta_generic_to_shared(&bar);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(b)); asm volatile("fence.mbarrier_init.release.cluster;"); asm volatile("fence.proxy.async.shared::cta;");
  const char* p = base + (long)blockIdx.x * tile_step * tiles; long long tot = 0; unsigned ph = 0;
  for (int t = 0; t < tiles; t += inflight) {
    long long t0 = clock64();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(b), "r"(bytes * inflight) : "memory");
    for (int f = 0; f < inflight; f++)
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(dst + f * bytes), "l"(p + (t + f) * tile_step), "r"(bytes), "r"(b) : "memory");
    unsigned ok = 0;
    while (!ok) asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(ok) : "r"(b), "r"(ph) : "memory");
    ph ^= 1; tot += clock64() - t0;
  }
  out[2 * blockIdx.x] = (int)(tot / (tiles / inflight));
}

static void tile(int sms) {
  size_t bytes = 8ull << 30; char* buf; int* out; CK(cudaMalloc(&buf, bytes)); CK(cudaMemset(buf, 1, bytes)); CK(cudaMalloc(&out, 1 << 20)); std::vector<int> h(2 * sms);
  CK(cudaFuncSetAttribute(tile_latency, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024)); CK(cudaFuncSetAttribute(bulk_latency, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
  for (int where = 0; where < 2; where++)            // 0: L2-resident (one warm pass), 1: HBM
    for (int blocks : {1, 2, 16, 66, 132})
      for (int rows : {1, 16, 64, 128, 256})
        for (int inflight : {1, 4}) {
          if (rows * inflight * 128 > 160 * 1024) continue;
          int tiles = where ? 48 : 8; long step = (long)rows * 128, span = step * tiles * blocks;
          if (!where && span > (24 << 20)) tiles = std::max(inflight, (int)((24 << 20) / step / blocks) / inflight * inflight);
          for (int kind = 0; kind < 3; kind++) {  // 0 cp.async dense rows, 1 cp.async rows of pitch 8 KiB, 2 one bulk copy a tile
            long pitch = kind == 1 ? 8192 : 128, st = kind == 1 ? 128 : step;
            if (kind == 1) { tiles = std::min(tiles, 64 / inflight * inflight); st = 128; }
            const char* base = buf; double best = 0; 
            for (int rep = 0; rep < (where ? 1 : 2); rep++) {
              if (where) { CK(cudaMemset(buf + (bytes >> 1), rep, 256 << 20)); CK(cudaDeviceSynchronize()); }
              if (kind < 2) tile_latency<<<sms, 256, 200 * 1024>>>(base, rows, pitch, st, kind == 1 ? rows * pitch : st * tiles, tiles, inflight, out, blocks);
              else bulk_latency<<<sms, 32, 200 * 1024>>>(base, rows * 128, st, tiles, inflight, out, blocks);
              CK(cudaDeviceSynchronize());
            }
            CK(cudaMemcpy(h.data(), out, 2 * sms * 4, cudaMemcpyDeviceToHost));
            for (int i = 0; i < blocks; i++) best += h[2 * i]; best /= blocks;
            printf("tile_latency,%s;%s;blocks=%d,rows=%d;inflight=%d,%.1f,cycles\n", where ? "hbm" : "l2", kind == 0 ? "cp_async_dense" : kind == 1 ? "cp_async_pitch8k" : "bulk", blocks, rows, inflight, best);
          }
        }
}

// SMs listed in `who` read the same chunks in step, the i-th `delay * i` cycles behind; counters (ncu) show how many sectors L2 served
__global__ void share(const char* base, const int* who, int n, int delay, int chunks, int period, unsigned* go, int bulk) {
  extern __shared__ __align__(128) char sm[]; __shared__ __align__(8) unsigned long long bar;
  int me = -1; for (int i = 0; i < n; i++) if (who[i] == (int)smid()) me = i;
  if (me < 0) return;
  unsigned dst = (unsigned)__cvta_generic_to_shared(sm), b = (unsigned)__cvta_generic_to_shared(&bar), ph = 0;
  if (threadIdx.x == 0) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(b)); asm volatile("fence.proxy.async.shared::cta;"); atomicAdd(go, 1); while (atomicAdd(go, 0) < n) {} }
  __syncthreads();
  unsigned long long g0 = (gtime() / 1024 + 20) * 1024; while (gtime() < g0) {}
  long long c0 = clock64() + (long long)delay * me;
  for (int t = 0; t < chunks; t++) {
    while (clock64() - c0 < (long long)t * period) {}
    __syncthreads();
    if (bulk) {
      if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16384;" :: "r"(b) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16384, [%2];" :: "r"(dst), "l"(base + (long)t * 16384), "r"(b) : "memory");
        unsigned ok = 0;
        while (!ok) asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(ok) : "r"(b), "r"(ph) : "memory");
      }
      ph ^= 1;
    } else {
      for (int i = threadIdx.x; i < 1024; i += blockDim.x) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(dst + i * 16), "l"(base + (long)t * 16384 + i * 16));
      asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
  }
}
static void share_all(int sms) {
  char* buf; int* who; unsigned* go; CK(cudaMalloc(&buf, 64 << 20)); CK(cudaMemset(buf, 1, 64 << 20)); CK(cudaMalloc(&who, 4096)); CK(cudaMalloc(&go, 4));
  CK(cudaFuncSetAttribute(share, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
  std::vector<std::vector<int>> sets = {{0}, {0, 1}, {0, 2}, {0, 4}, {0, 6}, {0, 16}, {0, 18}, {0, 32}, {0, 64}, {0, 66}, {0, 1, 16, 17}, {0, 1, 2, 3}};
  for (auto& s : sets) for (int bulk : {0, 1}) for (int delay : {0, 50, 100, 200, 400, 800, 1600}) {
    if (s.size() == 1 && delay) continue;
    CK(cudaMemcpy(who, s.data(), s.size() * 4, cudaMemcpyHostToDevice)); CK(cudaMemset(go, 0, 4));
    share<<<sms, 128, 200 * 1024>>>(buf, who, (int)s.size(), delay, 256, 5000, go, bulk); CK(cudaDeviceSynchronize());
    printf("SHARE "); for (int x : s) printf("%d.", x); printf(",bulk=%d;delay=%d\n", bulk, delay);
  }
}
int main(int argc, char** argv) {
  cudaDeviceProp p; CK(cudaGetDeviceProperties(&p, 0)); const char* w = argc > 1 ? argv[1] : "place"; int sms = p.multiProcessorCount;
  if (!strcmp(w, "place")) place(sms); else if (!strcmp(w, "partition")) partition(sms); else if (!strcmp(w, "home")) home(); else if (!strcmp(w, "tile")) tile(sms); else share_all(sms);
}
