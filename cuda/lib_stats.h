// What a segment retains, in sums.
#pragma once

#define STATS 5
#define HEAVIEST 3
