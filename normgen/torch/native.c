/* A call of a norm on tensors, made again: allocate its results, fill in addresses, launch.
 *
 * Everything that depends on more than addresses is worked out in Python once, and given to `repeat`. Built
 * where there is a C compiler and Python's headers; without it the same is done in Python. The driver is
 * reached through the addresses of its functions, so that nothing of CUDA is needed to build this.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* As in cuda.h: CUlaunchAttribute, CUlaunchConfig, and how arguments go in one buffer. */
typedef struct { int id; char pad[4]; union { char pad[64]; int allowed; } value; } Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    Attribute *attributes;
    unsigned attribute_count;
} Configuration;
typedef int (*LaunchKernel)(const Configuration *, void *function, void **arguments, void **extra);
enum { BUFFER_POINTER = 1, BUFFER_SIZE = 2, END = 0, EARLY_START = 6 };

enum { MOST_ARGUMENTS = 4096, MOST_ADDRESSES = 64 };

/* Where an address goes in the arguments of a launch. */
typedef struct { Py_ssize_t offset, source; } Patch;

typedef struct {
    void *function;
    Configuration configuration;
    Attribute early;
    Py_ssize_t size, patch_count;
    char *arguments;
    Patch *patches;
} Launch;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    LaunchKernel launch;
    PyObject *address_of; /* tensor -> its address */
    PyObject *allocate;   /* (shape, strides, dtype) -> tensor */
    PyObject *made;       /* a tuple of such arguments for each result to make */
    PyObject *fields;     /* for each result its place among those made, -1 for None */
    Py_ssize_t launch_count;
    Launch *launches;
} Repeat;

static uint64_t address(Repeat *self, PyObject *tensor)
{
    PyObject *found = PyObject_CallOneArg(self->address_of, tensor);
    if (!found) return 0;
    uint64_t value = PyLong_AsUnsignedLongLong(found);
    Py_DECREF(found);
    return value;
}

/* (stream, operands, scratch addresses) -> a tuple of results, or the driver's error code as an int where it
 * refused the first launch. */
static PyObject *call(PyObject *object, PyObject *const *given, size_t flags, PyObject *names)
{
    Repeat *self = (Repeat *)object;
    uint64_t addresses[MOST_ADDRESSES];
    PyObject *made[MOST_ADDRESSES];
    Py_ssize_t count = 0, made_count = PyTuple_GET_SIZE(self->made), done = 0;
    PyObject *result = NULL;
    (void)names;
    if (PyVectorcall_NARGS(flags) != 3 || !PyTuple_Check(given[1]) || !PyTuple_Check(given[2])) {
        PyErr_SetString(PyExc_TypeError, "expected (stream, operands, scratch)");
        return NULL;
    }
    uint64_t stream = PyLong_AsUnsignedLongLong(given[0]);
    Py_ssize_t operands = PyTuple_GET_SIZE(given[1]), scratch = PyTuple_GET_SIZE(given[2]);
    if (operands + made_count + scratch > MOST_ADDRESSES) {
        PyErr_SetString(PyExc_ValueError, "too many tensors");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < operands; i++)
        if (PyTuple_GET_ITEM(given[1], i) != Py_None)
            addresses[count++] = address(self, PyTuple_GET_ITEM(given[1], i));
    for (; done < made_count; done++) {
        PyObject *shape = PyTuple_GET_ITEM(self->made, done);
        made[done] = PyObject_Vectorcall(self->allocate, &PyTuple_GET_ITEM(shape, 0), 3, NULL);
        if (!made[done]) goto end;
        addresses[count++] = address(self, made[done]);
    }
    for (Py_ssize_t i = 0; i < scratch; i++)
        addresses[count++] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(given[2], i));
    if (PyErr_Occurred()) goto end;
    for (Py_ssize_t i = 0; i < self->launch_count; i++) {
        const Launch *launch = &self->launches[i];
        char arguments[MOST_ARGUMENTS];
        size_t size = (size_t)launch->size;
        Configuration configuration = launch->configuration;
        void *extra[] = {(void *)BUFFER_POINTER, arguments, (void *)BUFFER_SIZE, &size, (void *)END};
        memcpy(arguments, launch->arguments, size);
        for (Py_ssize_t j = 0; j < launch->patch_count; j++) {
            const Patch *patch = &launch->patches[j];
            if (patch->source >= count) {
                PyErr_SetString(PyExc_ValueError, "too few tensors");
                goto end;
            }
            memcpy(arguments + patch->offset, &addresses[patch->source], sizeof(uint64_t));
        }
        configuration.stream = (void *)(uintptr_t)stream;
        int code;
        Py_BEGIN_ALLOW_THREADS /* a full queue makes the driver wait */
        code = self->launch(&configuration, launch->function, NULL, extra);
        Py_END_ALLOW_THREADS
        if (code) { /* a call that has begun is not made again: it may have written states */
            if (i == 0) result = PyLong_FromLong(code);
            else PyErr_Format(PyExc_RuntimeError, "CUDA: launch %zd of a call failed with error %d", i + 1,
                              code);
            goto end;
        }
    }
    result = PyTuple_New(PyTuple_GET_SIZE(self->fields));
    for (Py_ssize_t i = 0; result && i < PyTuple_GET_SIZE(self->fields); i++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(self->fields, i));
        PyTuple_SET_ITEM(result, i, Py_NewRef(place < 0 ? Py_None : made[place]));
    }
end:
    for (Py_ssize_t i = 0; i < done; i++) Py_DECREF(made[i]);
    return result;
}

static int read_launch(Launch *launch, PyObject *told)
{
    const char *arguments;
    PyObject *patches;
    unsigned *g = launch->configuration.grid, *b = launch->configuration.block;
    unsigned long long function;
    int early;
    if (!PyArg_ParseTuple(told, "K(III)(III)Ipy#O!", &function, &g[0], &g[1], &g[2], &b[0], &b[1], &b[2],
                          &launch->configuration.shared, &early, &arguments, &launch->size, &PyTuple_Type,
                          &patches))
        return -1;
    launch->function = (void *)(uintptr_t)function;
    if (early) {
        launch->early.id = EARLY_START;
        launch->early.value.allowed = 1;
        launch->configuration.attributes = &launch->early;
        launch->configuration.attribute_count = 1;
    }
    launch->patch_count = PyTuple_GET_SIZE(patches);
    launch->arguments = PyMem_Malloc((size_t)launch->size + 1);
    launch->patches = PyMem_Calloc((size_t)launch->patch_count + 1, sizeof(Patch));
    if (launch->size > MOST_ARGUMENTS || !launch->arguments || !launch->patches) {
        PyErr_SetString(PyExc_ValueError, "a launch has too many arguments");
        return -1;
    }
    memcpy(launch->arguments, arguments, (size_t)launch->size);
    for (Py_ssize_t i = 0; i < launch->patch_count; i++) {
        Patch *patch = &launch->patches[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(patches, i), "nn", &patch->offset, &patch->source)) return -1;
        if (patch->source >= MOST_ADDRESSES || patch->offset + 8 > launch->size) {
            PyErr_SetString(PyExc_ValueError, "an address has no place");
            return -1;
        }
    }
    return 0;
}

/* (cuLaunchKernelEx, address_of, allocate, made, fields, launches) */
static PyObject *create(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    unsigned long long launch;
    PyObject *launches;
    Repeat *self = (Repeat *)type->tp_alloc(type, 0);
    (void)named;
    if (!self) return NULL;
    self->call = call;
    if (!PyArg_ParseTuple(arguments, "KOOO!O!O!", &launch, &self->address_of, &self->allocate, &PyTuple_Type,
                          &self->made, &PyTuple_Type, &self->fields, &PyTuple_Type, &launches)) {
        self->address_of = self->allocate = self->made = self->fields = NULL;
        Py_DECREF(self);
        return NULL;
    }
    Py_INCREF(self->address_of);
    Py_INCREF(self->allocate);
    Py_INCREF(self->made);
    Py_INCREF(self->fields);
    self->launch = (LaunchKernel)(uintptr_t)launch;
    self->launch_count = PyTuple_GET_SIZE(launches);
    self->launches = PyMem_Calloc((size_t)self->launch_count + 1, sizeof(Launch));
    for (Py_ssize_t i = 0; self->launches && i < self->launch_count; i++)
        if (read_launch(&self->launches[i], PyTuple_GET_ITEM(launches, i))) {
            Py_DECREF(self);
            return NULL;
        }
    return (PyObject *)self;
}

static void destroy(PyObject *object)
{
    Repeat *self = (Repeat *)object;
    for (Py_ssize_t i = 0; self->launches && i < self->launch_count; i++) {
        PyMem_Free(self->launches[i].arguments);
        PyMem_Free(self->launches[i].patches);
    }
    PyMem_Free(self->launches);
    Py_XDECREF(self->address_of);
    Py_XDECREF(self->allocate);
    Py_XDECREF(self->made);
    Py_XDECREF(self->fields);
    Py_TYPE(object)->tp_free(object);
}

static PyTypeObject RepeatType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "normgen_native.Repeat",
    .tp_basicsize = sizeof(Repeat),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Repeat, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = create,
    .tp_dealloc = destroy,
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "normgen_native", .m_size = -1};

PyMODINIT_FUNC PyInit_normgen_native(void)
{
    if (PyType_Ready(&RepeatType) < 0) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddObjectRef(module, "Repeat", (PyObject *)&RepeatType) < 0) Py_CLEAR(module);
    return module;
}
