// What does L2 bring from memory when a kernel reads part of a line, and do other parts of the line hit afterwards?
// Usage: fills   (a kernel a case, to be run under ncu; prints the cases in order)
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)

// Every thread copies 16 B; `per` threads read the first 16 x per bytes from `offset` on of each piece of `pitch` bytes.
__global__ void parts(const char* p, long pieces, int pitch, int per, int offset, int again) {
  extern __shared__ __align__(128) char sm[];
  unsigned dst = (unsigned)__cvta_generic_to_shared(sm) + threadIdx.x * 16;
  long step = (long)gridDim.x * blockDim.x / per;
  for (long i = (blockIdx.x * (long)blockDim.x + threadIdx.x) / per; i < pieces; i += step) {
    const char* q = p + i * pitch + offset + threadIdx.x % per * 16;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(dst), "l"(q));
    if (again) { asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory"); asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(dst), "l"(q + again)); }
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 4;" ::: "memory");
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

int main() {
  size_t bytes = 1ull << 30; char* p; CK(cudaMalloc(&p, bytes)); CK(cudaMemset(p, 1, bytes));
  size_t limit; CK(cudaDeviceGetLimit(&limit, cudaLimitMaxL2FetchGranularity)); printf("# granularity %zu\n", limit);
  for (int pitch : {128, 256, 512, 1024, 4096}) for (int n : {32, 64, 128, 256}) for (int offset : {0, 32, 64}) for (int again : {0, 64}) {
    if (n + offset > pitch || (again && n + offset + again > pitch) || (again && n > 64)) continue;
    long pieces = (256l << 20) / pitch;
    parts<<<1056, 256, 4096>>>(p, pieces, pitch, n / 16, offset, again); CK(cudaDeviceSynchronize());
    printf("pitch=%d;bytes=%d;offset=%d;again=%d,%ld\n", pitch, n, offset, again, pieces);
  }
}
