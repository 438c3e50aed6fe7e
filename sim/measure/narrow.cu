// Loads through registers: cycles an SM takes for one warp's load of `width` bytes a thread and its store to shared memory.
// A CTA copies a 128 x 32 tile of 2-byte elements, predicated, as kernels for unaligned operands do.
// Usage: narrow   (CSV on standard output: bench,param1,param2,value,unit)
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)
template <class T> __global__ void copy_tile(const char* base, long pitch, int tiles, int rows, long long* out) {
  extern __shared__ __align__(16) char sm[];
  constexpr int per_row = 64 / sizeof(T), total = 128 * per_row;  // rows of 64 B
  long long t0 = clock64();
  const char* p = base + (long)blockIdx.x * 128 * pitch;
  for (int t = 0; t < tiles; t++) {
    T v[16];
    for (int start = 0; start < total; start += blockDim.x * 16) {
#pragma unroll
      for (int j = 0; j < 16; j++) {
        int i = start + threadIdx.x + j * blockDim.x; int r = i / per_row, c = i % per_row;
        if (i < total && r < rows) v[j] = __ldg((const T*)(p + r * pitch + (t % 16) * 64) + c);
      }
#pragma unroll
      for (int j = 0; j < 16; j++) { int i = start + threadIdx.x + j * blockDim.x; if (i < total) ((T*)sm)[i] = v[j]; }
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = clock64() - t0;
}
template <class T> void bench(const char* base, long pitch, long long* d, int sms) {
  for (int threads : {128, 256}) for (int ctas : {1, 2, 3}) for (int rows : {128, 16}) {
    int smem = ctas == 1 ? 120 * 1024 : ctas == 2 ? 80 * 1024 : 60 * 1024; long long h;
    CK(cudaFuncSetAttribute(copy_tile<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, 160 * 1024));
    for (int r = 0; r < 2; r++) { copy_tile<T><<<sms * ctas, threads, smem>>>(base, pitch, 200, rows, d); CK(cudaDeviceSynchronize()); }
    CK(cudaMemcpy(&h, d, 8, cudaMemcpyDeviceToHost));
    double loads = 200.0 * 128 * 64 / sizeof(T) / 32 * ctas;
    printf("register_copy,width=%d;threads=%d;ctas_per_sm=%d,valid_rows=%d,%.2f,cycles/warp load\n", (int)sizeof(T), threads, ctas, rows, h / loads);
  }
}
int main() {
  cudaDeviceProp p; CK(cudaGetDeviceProperties(&p, 0)); char* b; long long* d; CK(cudaMalloc(&b, 1l << 30)); CK(cudaMemset(b, 0, 1l << 30)); CK(cudaMalloc(&d, 1 << 16));
  bench<uint16_t>(b, 2048, d, p.multiProcessorCount); bench<uint32_t>(b, 2048, d, p.multiProcessorCount); bench<uint2>(b, 2048, d, p.multiProcessorCount); bench<uint4>(b, 2048, d, p.multiProcessorCount);
}
