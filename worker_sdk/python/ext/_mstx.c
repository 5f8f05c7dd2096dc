/* taskd._mstx: marks from Python at the price of one C call. One binary for CPython 3.7 and later (stable ABI).
 *
 * bind(handle) looks the functions up in the libtaskd.so that ctypes loaded. Before that every function does nothing.
 * Nothing here raises once bound: training goes on whatever it is called with.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03070000
#include <Python.h>
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

/* Both are in every CPython from 3.7 on as they are here, but were declared stable only with 3.10. */
#ifndef METH_FASTCALL
#define METH_FASTCALL 0x0080
#endif
PyAPI_FUNC(const char*) PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*);

static struct {
  void (*mark)(const char*, void*);
  uint64_t (*range_start)(const char*, void*);
  void (*range_end)(uint64_t);
  void* (*domain_create)(const char*);
  void (*domain_mark)(void*, const char*, void*);
  uint64_t (*domain_range_start)(void*, const char*, void*);
  uint32_t (*enabled_kinds)(void);
} lib;

/* Domains met so far, found by the name object's identity: callers pass the same constant again and again. The GIL, or
 * CPython's lock of a module without Py_mod_gil, guards it. */
enum { kKnownDomains = 16 };
static struct {
  PyObject* name;
  void* handle;
} domains[kKnownDomains];
static int domain_count;

/* Text of a str or bytes; *owned is to be released after use. NULL: it has no text. */
static const char* Text(PyObject* object, PyObject** owned) {
  *owned = NULL;
  if (PyUnicode_Check(object)) {
    const char* text = PyUnicode_AsUTF8AndSize(object, NULL);
    if (text != NULL) return text;
    PyErr_Clear(); /* a lone surrogate: its bytes go on, and the proxy writes U+FFFD */
    *owned = PyUnicode_AsEncodedString(object, "utf-8", "surrogatepass");
  } else if (PyBytes_Check(object)) {
    Py_INCREF(object);
    *owned = object;
  }
  if (*owned == NULL) {
    PyErr_Clear();
    return NULL;
  }
  return PyBytes_AsString(*owned);
}

/* A stream as the mark calls take it: NULL for None and for whatever is no stream. */
static void* Stream(PyObject* object) {
  static const char* const kAttributes[] = {"npu_stream", "cuda_stream"};
  PyObject* value = NULL;
  void* stream = NULL;
  int cuda = 0;
  if (object == NULL || object == Py_None) return NULL;
  if (PyLong_Check(object)) {
    Py_INCREF(object);
    value = object;
  }
  for (int i = 0; value == NULL && i < 2; ++i) {
    value = PyObject_GetAttrString(object, kAttributes[i]);
    if (value == NULL) PyErr_Clear();
    cuda = i;
  }
  if (value != NULL && PyLong_Check(value)) {
    stream = PyLong_AsVoidPtr(value);
    if (stream == NULL && !PyErr_Occurred() && cuda) stream = (void*)1; /* CUDA's name for its default stream 0 */
  }
  PyErr_Clear();
  Py_XDECREF(value);
  return stream;
}

static void* Domain(PyObject* name) {
  PyObject* owned;
  const char* text;
  void* handle;
  for (int i = 0; i < domain_count; ++i) {
    if (domains[i].name == name) return domains[i].handle;
  }
  text = Text(name, &owned);
  if (text == NULL) return NULL;
  handle = lib.domain_create(text);
  Py_XDECREF(owned);
  if (domain_count < kKnownDomains) {
    Py_INCREF(name); /* kept, or another object could get its address */
    domains[domain_count].name = name;
    domains[domain_count].handle = handle;
    ++domain_count;
  }
  return handle;
}

typedef struct {
  PyObject* message;
  PyObject* stream;
  PyObject* domain; /* NULL: the default domain */
} Call;

/* (message, stream=None, *, domain=None). What does not fit is left out, not refused. */
static void ParseCall(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, Call* call) {
  Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_Size(kwnames);
  call->message = nargs > 0 ? args[0] : NULL;
  call->stream = nargs > 1 ? args[1] : NULL;
  call->domain = nargs > 2 ? args[2] : NULL;
  for (Py_ssize_t i = 0; i < keywords; ++i) {
    PyObject* name = PyTuple_GetItem(kwnames, i);
    PyObject* value = args[nargs + i];
    if (PyUnicode_CompareWithASCIIString(name, "message") == 0) {
      call->message = value;
    } else if (PyUnicode_CompareWithASCIIString(name, "stream") == 0) {
      call->stream = value;
    } else if (PyUnicode_CompareWithASCIIString(name, "domain") == 0) {
      call->domain = value;
    }
  }
  if (call->domain == Py_None) call->domain = NULL;
}

static PyObject* Mark(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Call call;
  PyObject* owned;
  const char* text;
  (void)self;
  ParseCall(args, nargs, kwnames, &call);
  if (lib.mark != NULL && call.message != NULL && (text = Text(call.message, &owned)) != NULL) {
    void* stream = Stream(call.stream);
    if (call.domain == NULL) {
      lib.mark(text, stream);
    } else {
      void* domain = Domain(call.domain);
      if (domain != NULL) lib.domain_mark(domain, text, stream);
    }
    Py_XDECREF(owned);
  }
  Py_INCREF(Py_None);
  return Py_None;
}

static PyObject* RangeStart(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  Call call;
  PyObject* owned;
  const char* text;
  uint64_t id = 0;
  (void)self;
  ParseCall(args, nargs, kwnames, &call);
  if (lib.range_start != NULL && call.message != NULL && (text = Text(call.message, &owned)) != NULL) {
    void* stream = Stream(call.stream);
    if (call.domain == NULL) {
      id = lib.range_start(text, stream);
    } else {
      void* domain = Domain(call.domain);
      if (domain != NULL) id = lib.domain_range_start(domain, text, stream);
    }
    Py_XDECREF(owned);
  }
  return PyLong_FromUnsignedLongLong(id);
}

static PyObject* RangeEnd(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  (void)self;
  if (lib.range_end != NULL && nargs > 0 && PyLong_Check(args[0])) {
    uint64_t id = PyLong_AsUnsignedLongLong(args[0]);
    if (PyErr_Occurred()) {
      PyErr_Clear();
    } else if (id != 0) {
      lib.range_end(id);
    }
  }
  Py_INCREF(Py_None);
  return Py_None;
}

static PyObject* EnabledKinds(PyObject* self, PyObject* unused) {
  (void)self;
  (void)unused;
  return PyLong_FromUnsignedLong(lib.enabled_kinds == NULL ? 0 : lib.enabled_kinds());
}

static PyObject* Bind(PyObject* self, PyObject* handle_number) {
  static const char* const kNames[] = {"mstxMarkA",          "mstxRangeStartA", "mstxRangeEnd",
                                       "mstxDomainCreateA",  "mstxDomainMarkA", "mstxDomainRangeStartA",
                                       "taskd_enabled_kinds"};
  void** const slots = (void**)&lib;
  void* found[sizeof(kNames) / sizeof(kNames[0])];
  void* handle = PyLong_AsVoidPtr(handle_number);
  (void)self;
  if (handle == NULL) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "bind: the library's handle is 0");
    return NULL;
  }
  for (size_t i = 0; i < sizeof(kNames) / sizeof(kNames[0]); ++i) {
    found[i] = dlsym(handle, kNames[i]);
    if (found[i] == NULL) {
      PyErr_Format(PyExc_OSError, "bind: the library has no %s", kNames[i]);
      return NULL;
    }
  }
  memcpy(slots, found, sizeof(found));
  Py_INCREF(Py_None);
  return Py_None;
}

static PyMethodDef methods[] = {
    {"mark", (PyCFunction)(void (*)(void))Mark, METH_FASTCALL | METH_KEYWORDS,
     "mark(message, stream=None, domain=None)"},
    {"range_start", (PyCFunction)(void (*)(void))RangeStart, METH_FASTCALL | METH_KEYWORDS,
     "range_start(message, stream=None, domain=None) -> id, 0 where nothing is recorded"},
    {"range_end", (PyCFunction)(void (*)(void))RangeEnd, METH_FASTCALL, "range_end(id)"},
    {"enabled_kinds", EnabledKinds, METH_NOARGS, "enabled_kinds() -> bits of the kinds that are recorded now"},
    {"bind", Bind, METH_O, "bind(handle): takes the functions from a library that is loaded"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_mstx", "Marks into libtaskd.so; see taskd.mstx.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__mstx(void) { return PyModule_Create(&module); }
