// Kineto's events -> columns that numpy owns, without a Python object per event and without the interpreter lock.
//
// torch keeps a window's events as C++ objects behind the `_ProfilerResult` that `_disable_profiler` returns; its Python
// binding copies each of them into an object of its own. Here they are read in place. Compiled on the user's machine against the
// headers of the torch that is installed (speccollect/native/build.py); what a torch lacks is found by the compiler (`Told`).

#include <Python.h>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace py = pybind11;

using torch::autograd::profiler::KinetoEvent;
using torch::autograd::profiler::ProfilerResult;

namespace {

template <typename Event, typename = void>
struct Told {
  static constexpr bool metadata = false;
  static std::string text(const Event&) {
    return {};
  }
};

template <typename Event>
struct Told<Event, std::void_t<decltype(std::declval<const Event&>().metadataJson())>> {
  static constexpr bool metadata = true;
  static std::string text(const Event& event) {
    return event.metadataJson();
  }
};

// Kernel names are long and share their beginnings: some words spread over the name tell most apart, and equality is tested anyway.
struct NameHash {
  static uint64_t word(const char* at) {
    uint64_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::size_t operator()(const std::string& name) const noexcept {
    const std::size_t size = name.size();
    uint64_t hash = size * 0x9E3779B97F4A7C15ull;
    const auto mix = [&hash](uint64_t value) {
      hash = (hash ^ value) * 0xff51afd7ed558ccdull;
      hash ^= hash >> 32;
    };
    if (size < 8) {
      uint64_t value = 0;
      std::memcpy(&value, name.data(), size);
      mix(value);
      return hash;
    }
    const std::size_t step = size <= 128 ? 8 : size / 16;
    for (std::size_t at = 0; at + 8 <= size; at += step) {
      mix(word(name.data() + at));
    }
    mix(word(name.data() + size - 8));
    return hash;
  }
};

template <typename T>
T* column(const py::buffer& buffer, std::size_t rows, std::vector<py::buffer_info>& held) {
  held.push_back(buffer.request(/*writable=*/true));
  const py::buffer_info& info = held.back();
  if (info.itemsize != static_cast<py::ssize_t>(sizeof(T)) || info.ndim != 1 || info.strides[0] != info.itemsize ||
      static_cast<std::size_t>(info.size) != rows) {
    throw std::invalid_argument("a column has another length or width than its events");
  }
  return static_cast<T*>(info.ptr);
}

py::object text(const std::string& bytes) {
  // what is no UTF-8 must not end the window: the same text that pybind11 refuses would be lost with it
  PyObject* made = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (made == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(made);
}

std::size_t event_count(const ProfilerResult& result) {
  return result.events().size();
}

// Fills the columns; returns the names and, of each activity type that occurs, its number and the first event that has it.
py::tuple read_columns(
    const ProfilerResult& result,
    const py::buffer& start,
    const py::buffer& duration,
    const py::buffer& correlation,
    const py::buffer& device,
    const py::buffer& resource,
    const py::buffer& name,
    const py::buffer& type) {
  const std::vector<KinetoEvent>& events = result.events();
  const std::size_t rows = events.size();
  std::vector<py::buffer_info> held;
  held.reserve(7);
  auto* starts = column<int64_t>(start, rows, held);
  auto* durations = column<int64_t>(duration, rows, held);
  auto* correlations = column<int64_t>(correlation, rows, held);
  auto* devices = column<int64_t>(device, rows, held);
  auto* resources = column<int64_t>(resource, rows, held);
  auto* names = column<int32_t>(name, rows, held);
  auto* types = column<int32_t>(type, rows, held);
  std::vector<const std::string*> texts;
  std::unordered_map<std::string, int32_t, NameHash> codes;
  std::vector<std::pair<int, std::size_t>> first_of_type;
  {
    const py::gil_scoped_release others_run;
    int32_t type_code[256];
    std::memset(type_code, -1, sizeof type_code);
    for (std::size_t row = 0; row < rows; ++row) {
      const KinetoEvent& event = events[row];
      starts[row] = static_cast<int64_t>(event.startNs());
      durations[row] = static_cast<int64_t>(event.durationNs());
      correlations[row] = static_cast<int64_t>(event.correlationId());
      devices[row] = static_cast<int64_t>(event.deviceIndex());
      resources[row] = static_cast<int64_t>(event.deviceResourceId());
      const auto kind = static_cast<unsigned char>(event.activityType());
      if (type_code[kind] < 0) {
        type_code[kind] = static_cast<int32_t>(first_of_type.size());
        first_of_type.emplace_back(kind, row);
      }
      types[row] = type_code[kind];
      const auto found = codes.try_emplace(event.name(), static_cast<int32_t>(texts.size()));
      if (found.second) {
        texts.push_back(&found.first->first);
      }
      names[row] = found.first->second;
    }
  }
  py::list name_texts;
  for (const std::string* one : texts) {
    name_texts.append(text(*one));
  }
  py::list type_rows;
  for (const auto& [kind, row] : first_of_type) {
    type_rows.append(py::make_tuple(kind, row));
  }
  return py::make_tuple(name_texts, type_rows);
}

py::object event_object(const ProfilerResult& result, std::size_t row) {
  return py::cast(result.events().at(row));
}

// The profiler's text of some events, in their order.
py::list metadata_texts(const ProfilerResult& result, const py::buffer& rows) {
  std::vector<py::buffer_info> held;
  held.push_back(rows.request());
  if (held.back().itemsize != sizeof(int64_t) || held.back().ndim != 1) {
    throw std::invalid_argument("rows must be one column of int64");
  }
  const auto* wanted = static_cast<const int64_t*>(held.back().ptr);
  std::vector<std::string> found(static_cast<std::size_t>(held.back().size));
  {
    const py::gil_scoped_release others_run;
    for (std::size_t i = 0; i < found.size(); ++i) {
      found[i] = Told<KinetoEvent>::text(result.events().at(static_cast<std::size_t>(wanted[i])));
    }
  }
  py::list made;
  for (const std::string& one : found) {
    made.append(text(one));
  }
  return made;
}

// The integer that a text gives under a quoted key (`"graph id": 9`), -1 where it gives none. Unsigned ids wrap, as in numpy.
int64_t number_under(const std::string& text, const std::string& key) {
  const std::size_t found = text.find(key);
  if (found == std::string::npos) {
    return -1;
  }
  const char* at = text.c_str() + found + key.size();
  while (*at == ' ' || *at == ':') {
    ++at;
  }
  if (*at < '0' || *at > '9') {
    return -1;
  }
  uint64_t value = 0;
  for (; *at >= '0' && *at <= '9'; ++at) {
    value = value * 10 + static_cast<uint64_t>(*at - '0');
  }
  return static_cast<int64_t>(value);
}

// Columns of the integers that the profiler's text of some events gives under some keys.
void read_numbers(
    const ProfilerResult& result,
    const py::buffer& rows,
    const std::vector<std::string>& keys,
    const std::vector<py::buffer>& columns) {
  std::vector<py::buffer_info> held;
  held.reserve(columns.size() + 1);
  held.push_back(rows.request());
  if (held.back().itemsize != sizeof(int64_t) || held.back().ndim != 1 || keys.size() != columns.size()) {
    throw std::invalid_argument("rows must be one column of int64, and each key needs a column");
  }
  const auto* wanted = static_cast<const int64_t*>(held.back().ptr);
  const auto count = static_cast<std::size_t>(held.back().size);
  std::vector<std::pair<std::string, int64_t*>> sought;
  for (std::size_t k = 0; k < keys.size(); ++k) {
    sought.emplace_back('"' + keys[k] + '"', column<int64_t>(columns[k], count, held));
  }
  const py::gil_scoped_release others_run;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string text = Told<KinetoEvent>::text(result.events().at(static_cast<std::size_t>(wanted[i])));
    for (auto& [key, values] : sought) {
      values[i] = number_under(text, key);
    }
  }
}

// Frees the events. Left to Python, the object's end would free some hundred megabytes under the interpreter lock.
void release(ProfilerResult& result) {
  const py::gil_scoped_release others_run;
  result.~ProfilerResult();
  new (&result) ProfilerResult();
}

} // namespace

PYBIND11_MODULE(kineto_reader, module) {
  module.def("count", &event_count);
  module.def("read", &read_columns);
  module.def("event", &event_object);
  module.def("texts", &metadata_texts);
  module.def("numbers", &read_numbers);
  module.def("release", &release);
  module.attr("metadata") = Told<KinetoEvent>::metadata;
}
