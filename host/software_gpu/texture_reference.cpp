// SPDX-License-Identifier: Apache-2.0
#include "texture_reference.h"

#include "context.h"

namespace software_gpu {
namespace {

/// Null: bound to nothing, or to what is no texture any more.
std::shared_ptr<const ImageObject> bound_image(TextureReference& reference) {
  std::lock_guard lock(reference.mutex);
  auto object = std::make_shared<ImageObject>(
      ImageObject{reference.context, reference.resource, reference.texture});
  if (!reference.is_bound ||
      make_texture(object->resource, object->texture, nullptr, &object->image) != CUDA_SUCCESS)
    return nullptr;
  return object;
}

std::shared_ptr<const ImageObject> bound_image(const SurfaceReference& reference) {
  auto object = std::make_shared<ImageObject>(ImageObject{reference.context});
  object->resource.resType = CU_RESOURCE_TYPE_ARRAY;
  object->resource.res.array.hArray = reference.array;
  if (make_surface(object->resource, &object->image) != CUDA_SUCCESS) return nullptr;
  return object;
}

}  // namespace

void add_references(LoadedModule& module) {
  Driver& driver = Driver::instance();
  for (const auto& [name, reference] : module.module->references) {
    if (reference.is_surface) {
      auto surface = std::make_shared<SurfaceReference>(*module.context, reference.address);
      module.surface_references[name] = surface;
      driver.surface_references.add(std::move(surface));
    } else {
      auto texture = std::make_shared<TextureReference>(*module.context, reference.address);
      module.texture_references[name] = texture;
      driver.texture_references.add(std::move(texture));
    }
  }
}

void forget_references(const LoadedModule& module) {
  Driver& driver = Driver::instance();
  for (const auto& [name, reference] : module.texture_references)
    driver.texture_references.take(reference.get());
  for (const auto& [name, reference] : module.surface_references)
    driver.surface_references.take(reference.get());
}

std::vector<std::shared_ptr<const ImageTable>> images_of(const LoadedModule& module) {
  auto bound = std::make_shared<ImageTable>();
  for (const auto& [name, reference] : module.texture_references)
    if (auto image = bound_image(*reference)) bound->emplace(reference->address, std::move(image));
  for (const auto& [name, reference] : module.surface_references)
    if (auto image = bound_image(*reference)) bound->emplace(reference->address, std::move(image));
  std::vector<std::shared_ptr<const ImageTable>> tables{Driver::instance().images.all()};
  if (!bound->empty()) tables.push_back(std::move(bound));
  return tables;
}

}  // namespace software_gpu
