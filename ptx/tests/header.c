// The structures and constants of aqueduct_device.h are C11; compiled by ci/ptx.sh, run by nobody.
#include "aqueduct_device.h"

AqueductPortChannelHandle port;
uint32_t status(void) { return port.semaphore.abort.peer == AQUEDUCT_NO_PEER ? AQUEDUCT_LEFT_TOLD : AQUEDUCT_LEFT_NOT; }
