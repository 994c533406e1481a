/* A stand-in for the CUDA runtime: device memory is host memory, streams and events are always done, and every attempt
   to launch a kernel fails. It exports only what torch calls. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* tests/gpu/runtime.py reads these counts by position */
enum { LAUNCHES, STREAM_SYNCS, DEVICE_SYNCS, COPIES, MALLOCS, FREES, MEM_INFOS, PROPERTIES, SET_DEVICES, COUNTERS };
static long counts[COUNTERS];
long emulated_cuda_count(int what) { return counts[what]; }

static __thread int current;
static int devices(void) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *n = getenv("EMULATED_CUDA_DEVICES");
  return visible && !*visible ? 0 : n ? atoi(n) : 1;
}
static void *handle(void) { return calloc(1, 64); }

#define OK return cudaSuccess
cudaError_t cudaGetDeviceCount(int *n) { *n = devices(); return *n ? cudaSuccess : cudaErrorNoDevice; }
cudaError_t cudaGetDevice(int *d) { *d = current; OK; }
cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= devices()) return cudaErrorInvalidDevice;
  counts[SET_DEVICES]++; current = d; OK;
}
cudaError_t cudaDriverGetVersion(int *v) { *v = CUDART_VERSION; OK; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = CUDART_VERSION; OK; }
static __thread cudaError_t last;
cudaError_t cudaGetLastError(void) { cudaError_t e = last; last = cudaSuccess; return e; }
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorString(cudaError_t e) {
  return e == cudaSuccess ? "no error" : "the emulated CUDA runtime has no kernels: an operation got past EmulatedGPU";
}
const char *cudaGetErrorName(cudaError_t e) { return e == cudaSuccess ? "cudaSuccess" : "cudaErrorEmulated"; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  counts[PROPERTIES]++;
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "Emulated GPU %d", d);
  p->major = 8; p->minor = 0; p->multiProcessorCount = 108; p->totalGlobalMem = 16ull << 30; p->warpSize = 32;
  p->maxThreadsPerBlock = 1024; p->maxThreadsPerMultiProcessor = 2048; p->sharedMemPerBlock = 49152;
  p->regsPerMultiprocessor = 65536; p->regsPerBlock = 65536; p->sharedMemPerBlockOptin = 166912;
  p->sharedMemPerMultiprocessor = 167936; p->maxGridSize[0] = 2147483647; p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024; p->maxThreadsDim[2] = 64; p->l2CacheSize = 40 << 20;
  p->textureAlignment = 512; p->pciBusID = d + 1;
  OK;
}
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) {
  *v = a == cudaDevAttrComputeCapabilityMajor ? 8 : 0; OK;
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int d) { snprintf(id, n, "0000:%02x:00.0", d + 1); OK; }
cudaError_t cudaDeviceCanAccessPeer(int *v, int a, int b) { *v = 0; OK; }
cudaError_t cudaDeviceEnablePeerAccess(int a, unsigned f) { OK; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; OK; }
cudaError_t cudaDeviceSynchronize(void) { counts[DEVICE_SYNCS]++; OK; }
cudaError_t cudaMemGetInfo(size_t *f, size_t *t) {
  const char *n = getenv("EMULATED_CUDA_FREE"); counts[MEM_INFOS]++;
  *t = 16ull << 30; *f = n ? strtoull(n, NULL, 10) : 12ull << 30; OK;
}

cudaError_t cudaStreamCreate(cudaStream_t *s) { *s = handle(); OK; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) { *s = handle(); OK; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) { *s = handle(); OK; }
cudaError_t cudaStreamDestroy(cudaStream_t s) { OK; }
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *p) { *p = 0; OK; }
cudaError_t cudaStreamQuery(cudaStream_t s) { OK; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { counts[STREAM_SYNCS]++; OK; }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) { OK; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *c) { *c = cudaStreamCaptureStatusNone; OK; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *c, unsigned long long *id, cudaGraph_t *g,
                                     const cudaGraphNode_t **d, const cudaGraphEdgeData **e, size_t *n) {
  *c = cudaStreamCaptureStatusNone; if (id) *id = 0; if (g) *g = NULL; if (n) *n = 0; OK;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *m) { OK; }
cudaError_t cudaEventCreate(cudaEvent_t *e) { *e = handle(); OK; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f) { *e = handle(); OK; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { OK; }
cudaError_t cudaEventQuery(cudaEvent_t e) { OK; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { OK; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) { OK; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { counts[STREAM_SYNCS]++; OK; }
cudaError_t cudaEventElapsedTime(float *t, cudaEvent_t a, cudaEvent_t b) { *t = 0; OK; }

cudaError_t cudaMalloc(void **p, size_t n) {
  counts[MALLOCS]++; *p = NULL;
  return posix_memalign(p, 512, n ? n : 512) ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) { return cudaMalloc(p, n); }
cudaError_t cudaFree(void *p) { counts[FREES]++; free(p); OK; }
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return cudaFree(p); }

/* Pinned memory is remembered, because a copy from other host memory may make the host wait. */
struct pinned { const char *begin; size_t size; struct pinned *next; };
static struct pinned *pinned;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void pin(const void *p, size_t n) {
  struct pinned *new = malloc(sizeof *new);
  pthread_mutex_lock(&lock); *new = (struct pinned){p, n, pinned}; pinned = new; pthread_mutex_unlock(&lock);
}
static void unpin(const void *p) {
  pthread_mutex_lock(&lock);
  for (struct pinned **at = &pinned; *at; at = &(*at)->next)
    if ((*at)->begin == p) { struct pinned *old = *at; *at = old->next; free(old); break; }
  pthread_mutex_unlock(&lock);
}
static int is_pinned(const void *p) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (struct pinned *at = pinned; at && !found; at = at->next)
    found = (const char *)p >= at->begin && (const char *)p < at->begin + at->size;
  pthread_mutex_unlock(&lock);
  return found;
}
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned f) { *p = malloc(n ? n : 1); pin(*p, n ? n : 1); OK; }
cudaError_t cudaMallocHost(void **p, size_t n) { return cudaHostAlloc(p, n, 0); }
cudaError_t cudaFreeHost(void *p) { unpin(p); free(p); OK; }
cudaError_t cudaHostRegister(void *p, size_t n, unsigned f) { pin(p, n); OK; }
cudaError_t cudaHostUnregister(void *p) { unpin(p); OK; }
cudaError_t cudaMemcpy(void *d, const void *s, size_t n, enum cudaMemcpyKind k) { counts[COPIES]++; memcpy(d, s, n); OK; }
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, enum cudaMemcpyKind k, cudaStream_t st) {
  counts[COPIES]++; memcpy(d, s, n); OK;
}
cudaError_t cudaMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, cudaStream_t st) {
  counts[COPIES]++; memcpy(d, s, n); OK;
}
cudaError_t cudaMemset(void *p, int v, size_t n) { memset(p, v, n); OK; }
cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s) { memset(p, v, n); OK; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a); a->type = is_pinned(p) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered; OK;
}
static int nothing(void) { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned v, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *r) {
  *f = (void *)nothing; if (r) *r = cudaDriverEntryPointSuccess; OK;
}
static cudaError_t refused(void) { counts[LAUNCHES]++; return last = cudaErrorNotSupported; }
cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s) { return refused(); }
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s) { return refused(); }
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t k, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s) { return refused(); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **a) { return refused(); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) { return refused(); }

/* the driver API, as far as torch's library of it must load */
int cuDeviceGet(int *d, int ordinal) { *d = ordinal; return 0; }
int cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = handle(); return 0; }
int cuCtxGetCurrent(void **c) { *c = handle(); return 0; }
int cuCtxSetCurrent(void *c) { return 0; }
int cuGetErrorString(int e, const char **s) { *s = "emulated"; return 0; }
#define REFUSED(name) int name(void) { return 801; }
REFUSED(cuDeviceGetAttribute) REFUSED(cuFuncGetAttribute) REFUSED(cuFuncSetAttribute) REFUSED(cuFuncSetCacheConfig)
REFUSED(cuLaunchCooperativeKernel) REFUSED(cuLaunchKernel) REFUSED(cuLinkAddData_v2) REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate_v2) REFUSED(cuModuleGetFunction) REFUSED(cuModuleLoad) REFUSED(cuModuleLoadData)
REFUSED(cuModuleLoadDataEx) REFUSED(cuModuleUnload) REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSED(cuPointerGetAttribute) REFUSED(cuTensorMapEncodeTiled)
