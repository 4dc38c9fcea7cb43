// The driver's functions lie in core, where collectives find them too.
#pragma once

#include "mosaic/cuda_driver.h"
