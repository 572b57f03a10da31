/* A libcuda.so.1 that runs nothing and records everything: the real PyCUDA and the real cuda-bindings
 * work against it on a machine without a GPU.
 *
 * It keeps what matters here honest: a stack of current contexts for each thread, the context that a
 * module, a stream or memory belongs to, and the refusals of the real driver (no current context: 201;
 * another one current than the function's: 201; no device: 100; a launch that the device has no place
 * for: `refused`). A binary that begins with "fake cubin cluster 4;" has clusters of 4 blocks. Calls are
 * written, one per line, to the file named by FAKE_CUDA_LOG. FAKE_CUDA_DEVICES is the number of devices
 * (default 1), FAKE_CUDA_MULTIPROCESSORS what each has (default 132), FAKE_CUDA_MAJOR their generation
 * (default 9), FAKE_CUDA_VERSION the driver's version (default 13000): one before 13 takes no binaries.
 * Whatever else PyCUDA binds is a stub that answers 801. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a device has and a kernel takes. */
enum {
    THREADS_OF_ONE = 2048, REGISTERS_OF_ONE = 65536, USUAL_SHARED = 49152, RESERVED_SHARED = 1024,
    MOST_THREADS = 1024, STATIC_SHARED = 512, LOCAL = 16, REGISTERS = 40,
};

typedef int Result;
typedef uint64_t Pointer;
typedef struct { int device, primary, dead, number; } Context;
typedef struct { Context* context; int cluster; } Module;
typedef struct { Module* module; char name[200]; int shared, large_clusters; } Function;
typedef struct { Context* context; } Stream;

static __thread Context* stack[64];
static __thread int depth;
static Context primaries[8];
static Pointer next_address = 0x7f0000000000;
static struct { Pointer start; size_t size; char* content; Context* context; } blocks[4096];
static int block_count, contexts;
static __thread void* captured; /* the stream that a graph is made of */
static __thread Function* node; /* and what was launched on it */

static void note(const char* format, ...) {
    const char* path = getenv("FAKE_CUDA_LOG");
    if (!path) return;
    FILE* file = fopen(path, "a");
    va_list list;
    va_start(list, format);
    vfprintf(file, format, list);
    va_end(list);
    fputc('\n', file);
    fclose(file);
}
static Context* current(void) { return depth ? stack[depth - 1] : 0; }
static int given(const char* name, int usual) { const char* n = getenv(name); return n ? atoi(n) : usual; }
static int devices(void) { return given("FAKE_CUDA_DEVICES", 1); }
static int multiprocessors(void) { return given("FAKE_CUDA_MULTIPROCESSORS", 132); }
static int major(void) { return given("FAKE_CUDA_MAJOR", 9); }
static int most_shared(void) { return major() < 9 ? 166912 : 232448; } /* of a block; of all: */
static int shared_of_one(void) { return most_shared() + RESERVED_SHARED; }
static const char* name_of(Context* c) {
    static __thread char text[40];
    if (!c) return "none";
    snprintf(text, sizeof text, "%s%d%s", c->primary ? "primary" : "own", c->device, c->dead ? "-dead" : "");
    return text;
}

Result cuInit(unsigned flags) { return devices() > 0 ? 0 : 100; }
/* cuda-bindings asks for every function by its plain name, and gets the newest there is, or none. */
Result cuGetProcAddress_v2(const char* symbol, void** f, int version, uint64_t flags, int* status) {
    static const char* const suffixes[] = {"_v2", ""};
    char name[200];
    void* self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    *f = 0;
    for (int i = 0; i < 2 && !*f; i++) {
        snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
        *f = dlsym(self, name);
    }
    if (status) *status = *f ? 0 : 1;
    return *f ? 0 : 500;
}
/* NVRTC asks for tables of its own where there is a driver, and does without. */
Result cuGetExportTable(const void** table, const void* id) { *table = 0; return 500; }
static int version(void) { return given("FAKE_CUDA_VERSION", 13000); }
Result cuDriverGetVersion(int* v) { *v = version(); return 0; }
Result cuDeviceGetCount(int* n) { *n = devices(); return 0; }
Result cuDeviceGet(int* d, int i) { *d = i; return i < devices() ? 0 : 101; }
Result cuDeviceGetName(char* b, int l, int d) { snprintf(b, l, "Recorder %d", d); return 0; }
Result cuDeviceComputeCapability(int* a, int* b, int d) { *a = 9; *b = 0; return 0; }
Result cuDeviceTotalMem_v2(size_t* n, int d) { *n = 141ull << 30; return 0; }
Result cuDeviceGetAttribute(int* v, int a, int d) {
    switch (a) {
        case 8: *v = 49152; break;
        case 16: *v = multiprocessors(); break;
        case 39: *v = THREADS_OF_ONE; break;
        case 75: *v = major(); break;
        case 38: *v = 62914560; break;
        case 76: *v = 0; break;
        case 81: *v = shared_of_one(); break;
        case 82: *v = REGISTERS_OF_ONE; break;
        case 97: *v = most_shared(); break;
        default: *v = 1;
    }
    return 0;
}
Result cuGetErrorString(int e, const char** s) {
    *s = e == 201 ? "invalid device context" : "refused";
    return 0;
}
Result cuGetErrorName(int e, const char** s) { *s = "CUDA_ERROR_RECORDED"; return 0; }

Result cuDevicePrimaryCtxRetain(void** c, int d) {
    primaries[d].device = d;
    primaries[d].primary = 1;
    *c = &primaries[d];
    note("retain %d", d);
    return 0;
}
Result cuDevicePrimaryCtxGetState(int d, unsigned* flags, int* active) {
    *flags = 0;
    *active = primaries[d].primary;
    return 0;
}
Result cuDevicePrimaryCtxRelease_v2(int d) { note("release %d", d); return 0; }
Result cuCtxCreate_v4(void** c, void* p, unsigned f, int d) {
    Context* made = calloc(1, sizeof *made);
    made->device = d;
    made->number = ++contexts;
    *c = stack[depth++] = made;
    note("create %d", d);
    return 0;
}
Result cuCtxCreate_v2(void** c, unsigned f, int d) { return cuCtxCreate_v4(c, 0, f, d); }
Result cuCtxDetach(Context* c) {
    note("detach %s", name_of(c));
    c->dead = 1;
    if (current() == c) depth--;
    return 0;
}
Result cuCtxPushCurrent_v2(Context* c) { if (c->dead) return 201; stack[depth++] = c; return 0; }
Result cuCtxPopCurrent_v2(void** c) { if (!depth) return 201; *c = stack[--depth]; return 0; }
Result cuCtxGetDevice(int* d) { if (!depth) return 201; *d = current()->device; return 0; }
Result cuCtxGetId(Context* c, unsigned long long* id) { *id = c->number; return 0; }
Result cuCtxGetCurrent(void** c) { *c = current(); return 0; }
Result cuCtxSetCurrent(Context* c) { if (depth) stack[depth - 1] = c; else stack[depth++] = c; return 0; }
Result cuCtxSynchronize(void) { return depth ? 0 : 201; }

Result cuStreamCreate(Stream** s, unsigned f) {
    if (!depth) return 201;
    *s = calloc(1, 256);
    (*s)->context = current();
    note("stream %p in %s", (void*)*s, name_of(current()));
    return 0;
}
Result cuStreamDestroy_v2(Stream* s) { note("unstream %p in %s", (void*)s, name_of(current())); return 0; }
Result cuEventCreate(void** e, unsigned f) { if (!depth) return 201; *e = malloc(8); return 0; }
Result cuEventDestroy_v2(void* e) { free(e); return 0; }
Result cuEventRecord(void* e, void* s) { note("record %p", s); return 0; }
Result cuEventQuery(void* e) { note("query"); return 0; }
Result cuEventElapsedTime(float* ms, void* a, void* b) { *ms = 0.25f; return 0; }
Result cuEventElapsedTime_v2(float* ms, void* a, void* b) { return cuEventElapsedTime(ms, a, b); }
Result cuStreamWaitEvent(void* s, void* e, unsigned f) { note("wait %p", s); return 0; }

static int cluster_of(const char* data) {
    const char* head = "fake cubin cluster ";
    int found = 0;
    while (*head)
        if (*data++ != *head++) return 1;
    while (*data >= '0' && *data <= '9') found = 10 * found + *data++ - '0';
    return found;
}
Result cuModuleLoadDataEx(Module** m, const void* data, unsigned n, void* options, void** values) {
    if (!depth) return 201;
    if (memcmp(data, "fake cubin", 10) && memcmp(data, "\177ELF", 4)) return 209;
    if (version() < 13000) return 209;
    *m = calloc(1, sizeof **m);
    (*m)->context = current();
    (*m)->cluster = cluster_of(data);
    values[1] = values[3] = 0; /* the sizes of the logs */
    note("load in %s", name_of(current()));
    return 0;
}
Result cuModuleLoadData(Module** m, const void* data) {
    void* none[4];
    return cuModuleLoadDataEx(m, data, 0, 0, none);
}
Result cuModuleUnload(Module* m) { note("unload in %s", name_of(current())); return 0; }
Result cuModuleGetFunction(Function** f, Module* m, const char* name) {
    if (strstr(name, "missing")) return 500;
    *f = calloc(1, sizeof **f);
    (*f)->module = m;
    (*f)->shared = USUAL_SHARED - STATIC_SHARED;
    snprintf((*f)->name, sizeof (*f)->name, "%s", name);
    return 0;
}
Result cuFuncSetAttribute(Function* f, int a, int v) {
    note("attribute %s %d=%d", f->name, a, v);
    if (a == 8) {
        if (v < 0 || v > most_shared() - STATIC_SHARED) return 1;
        f->shared = v;
    } else if (a == 14) {
        if (major() < 9) return 801;
        f->large_clusters = v;
    } else
        return 1;
    return 0;
}
Result cuFuncGetAttribute(int* v, int a, Function* f) {
    const int values[] = {MOST_THREADS, STATIC_SHARED, 0, LOCAL, REGISTERS, 0, 0, 0, f->shared};
    *v = a < 9 ? values[a] : 0;
    return 0;
}
Result cuFuncSetBlockShape(Function* f, int x, int y, int z) {
    return depth && current() == f->module->context ? 0 : 201;
}
/* What CUDA's header calls CUlaunchConfig and CUlaunchAttribute. */
typedef struct { int id, pad, value[16]; } Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    void* stream;
    Attribute* attributes;
    unsigned count;
} Config;
static int least(int a, int b) { return a < b ? a : b; }
static Result refused(const Config* c, const Function* f) {
    const unsigned *g = c->grid, *b = c->block;
    const unsigned long long threads = (unsigned long long)b[0] * b[1] * b[2];
    unsigned cluster = f->module->cluster;
    int cooperative = 0;
    if (!threads || threads > MOST_THREADS || b[2] > 64) return 1;
    if (!g[0] || !g[1] || !g[2] || g[0] > 0x7fffffff || g[1] > 65535 || g[2] > 65535) return 1;
    if (c->shared > (unsigned)f->shared) return 1;
    for (unsigned i = 0; i < c->count; i++) {
        const Attribute* a = &c->attributes[i];
        if (a->id == 2) /* cooperative */
            cooperative = a->value[0];
        else if (a->id == 4) /* cluster dimension */
            cluster = a->value[0] * a->value[1] * a->value[2];
        else if (a->id != 6 || (a->value[0] && major() < 9)) /* programmatic stream serialization */
            return 801;
    }
    if (cluster > 1 && major() < 9) return 912;
    if (cluster > (f->large_clusters ? 16 : 8) || g[0] % cluster) return 912;
    if (cooperative) {
        int fit = least(THREADS_OF_ONE / threads, REGISTERS_OF_ONE / (REGISTERS * threads));
        fit = least(fit, shared_of_one() / (c->shared + STATIC_SHARED + RESERVED_SHARED));
        if ((unsigned long long)g[0] * g[1] * g[2] > (unsigned long long)fit * multiprocessors()) return 720;
    }
    return 0;
}
Result cuLaunchKernelEx(const Config* c, Function* f, void** parameters, void** extra) {
    char hex[1024] = "", more[200] = "";
    if (!depth || current() != f->module->context) return 201;
    const Result why = refused(c, f);
    if (why) return why;
    if (captured && c->stream == captured) {
        node = f;
        return 0;
    }
    if (!getenv("FAKE_CUDA_LOG")) return 0;
    for (int i = 0; extra && extra[i]; i += 2)
        if (extra[i] == (void*)1)
            for (size_t k = 0; k < *(size_t*)extra[i + 3] && k < 500; k++)
                sprintf(hex + 2 * k, "%02x", ((unsigned char*)extra[i + 1])[k]);
    for (unsigned i = 0; i < c->count && i < 4; i++)
        sprintf(more + strlen(more), " attribute %d=%d", c->attributes[i].id, c->attributes[i].value[0]);
    note(
        "launch %s grid %u,%u,%u block %u,%u,%u shared %u stream %p in %s args %s%s", f->name, c->grid[0],
        c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream,
        name_of(current()), hex, more);
    return 0;
}
Result cuLaunchKernel(
    Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
    unsigned shared, void* stream, void** parameters, void** extra) {
    const Config c = {{gx, gy, gz}, {bx, by, bz}, shared, stream, 0, 0};
    return cuLaunchKernelEx(&c, f, parameters, extra);
}

Result cuStreamBeginCapture_v2(void* stream, int mode) {
    if (!depth || captured || !stream) return 201;
    captured = stream;
    node = 0;
    return 0;
}
Result cuStreamEndCapture(void* stream, void** graph) {
    if (stream != captured) return 904;
    captured = 0;
    *graph = node;
    return node ? 0 : 901;
}
Result cuGraphGetNodes(void* graph, void** nodes, size_t* count) {
    if (*count) nodes[0] = graph;
    *count = 1;
    return 0;
}
Result cuGraphKernelNodeGetParams(void* kernel, void** parameters) {
    parameters[0] = kernel;
    return 0;
}
Result cuGraphDestroy(void* graph) { return 0; }

static int block_of(Pointer p) {
    for (int i = 0; i < block_count; i++)
        if (blocks[i].content && blocks[i].start <= p && p < blocks[i].start + blocks[i].size) return i;
    return -1;
}
Result cuMemAlloc_v2(Pointer* p, size_t size) {
    if (!depth) return 201;
    if (size > 1ull << 40) return 2;
    *p = blocks[block_count].start = next_address;
    blocks[block_count].size = size;
    blocks[block_count].context = current();
    blocks[block_count++].content = calloc(1, size);
    next_address += (size + 511) / 256 * 256;
    note("allocate %zu in %s", size, name_of(current()));
    return 0;
}
Result cuMemFree_v2(Pointer p) {
    int i = block_of(p);
    if (!depth) return 201;
    if (i < 0) return 1;
    free(blocks[i].content);
    blocks[i].content = 0;
    note("free %zu in %s", blocks[i].size, name_of(current()));
    while (block_count && !blocks[block_count - 1].content) block_count--;
    return 0;
}
Result cuMemcpyHtoD_v2(Pointer d, const void* s, size_t n) {
    int i = block_of(d);
    if (i < 0) return 1;
    memcpy(blocks[i].content + (d - blocks[i].start), s, n);
    note("copy in %zu", n);
    return 0;
}
Result cuMemcpyDtoH_v2(void* d, Pointer s, size_t n) {
    int i = block_of(s);
    if (i < 0) return 1;
    memcpy(d, blocks[i].content + (s - blocks[i].start), n);
    note("copy out %zu", n);
    return 0;
}
Result cuMemsetD8Async(Pointer d, unsigned char v, size_t n, void* stream) {
    int i = block_of(d);
    if (!depth) return 201;
    if (i < 0) return 1;
    memset(blocks[i].content + (d - blocks[i].start), v, n);
    note("fill %zu stream %p", n, stream);
    return 0;
}
Result cuStreamIsCapturing(void* stream, int* status) {
    *status = stream == (void*)0xca97;
    return stream ? 0 : 906;
}
Result cuStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void* graph, void* waited,
                                 void* count) {
    if (graph || waited || count) return 1;
    *status = stream == (void*)0xca97;
    *id = 77;
    return !depth ? 201 : stream ? 0 : 906;
}
Result cuStreamGetId(void* stream, unsigned long long* id) {
    *id = 1000 + (unsigned long long)(size_t)stream;
    return depth ? 0 : 201;
}
Result cuStreamSynchronize(void* stream) {
    if (!depth) return 201;
    note("finish stream %p", stream);
    return 0;
}
Result cuPointerGetAttribute(int* v, int a, Pointer p) {
    int i = block_of(p);
    if (i < 0) return 1;
    *v = blocks[i].context->device;
    return 0;
}
