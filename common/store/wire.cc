#include "common/store/wire.h"
