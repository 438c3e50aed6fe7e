// What does L2 bring from memory when a kernel reads part of a line, and do other parts of the line hit afterwards?
// Usage: fills   (a kernel a case, to be run under ncu with caches flushed; prints the cases in order)
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)

// Each thread copies 16 B: `per` threads the first 16 x per bytes from `offset` on of a piece of `pitch` bytes; then those `again` further.
__global__ void parts(const char* p, int pitch, int per, int offset, int again) {
  extern __shared__ __align__(128) char sm[];
  unsigned dst = (unsigned)__cvta_generic_to_shared(sm) + threadIdx.x * 16;
  long thread = blockIdx.x * (long)blockDim.x + threadIdx.x;
  const char* q = p + thread / per * pitch + offset + thread % per * 16;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(dst), "l"(q));
  asm volatile("cp.async.wait_all;" ::: "memory");
  if (again) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(dst), "l"(q + again));
  asm volatile("cp.async.wait_all;" ::: "memory");
}

int main() {
  const int pieces = 1 << 16, pitch = 4096; char* p; CK(cudaMalloc(&p, (size_t)pieces * pitch)); CK(cudaMemset(p, 1, (size_t)pieces * pitch));
  for (int n : {32, 64, 128}) for (int offset : {0, 32, 64}) for (int again : {0, 64}) {
    parts<<<pieces * (n / 16) / 256, 256, 4096>>>(p, pitch, n / 16, offset, again); CK(cudaDeviceSynchronize());
    printf("fills,pieces=%d;pitch=%d;bytes=%d;offset=%d;again=%d\n", pieces, pitch, n, offset, again);
  }
}
