#include "agent/run/options.h"
