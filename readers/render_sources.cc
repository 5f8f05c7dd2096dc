#include "readers/render_sources.h"

#include <utility>

#include "common/printable.h"
#include "diagnosis/render.h"
#include "nlohmann/json.hpp"

namespace taskd::readers {

using Json = nlohmann::ordered_json;

std::string RenderJson(const SourcesDiagnosis& diagnosis, const std::string& job) {
  std::string text = diagnosis::RenderJson(diagnosis.report, job);
  if (diagnosis.sources.empty()) return text;
  Json json = Json::parse(text);
  json["sources"] = Json::array();
  for (const Source& source : diagnosis.sources) {
    Json row;
    row["path"] = source.path;
    row["format"] = source.format;
    row["rank"] = source.rank < 0 ? Json() : Json(source.rank);
    row["records"] = source.records;
    row["note"] = source.note;
    json["sources"].push_back(std::move(row));
  }
  return PrintableJson(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string RenderText(const SourcesDiagnosis& diagnosis, const std::string& job) {
  return diagnosis::RenderText(diagnosis.report, job);
}

}  // namespace taskd::readers
