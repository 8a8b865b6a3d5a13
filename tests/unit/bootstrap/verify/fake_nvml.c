/* NVIDIA's management library without a GPU: each line of the file $FAKE_NVML is a GPU,
   "error ecc_code ecc rows_code pending failed retired_code retired throttle_code throttle bus name";
   codes are NVML's. The first line is the result of nvmlInitWithFlags. The declarations are those of nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int error, ecc_code, rows_code, retired_code, throttle_code;
    unsigned long long ecc, throttle;
    unsigned int pending, failed, retired;
    char bus[32], name[96];
} Gpu;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;

static Gpu gpus[64];
static unsigned int count;

int nvmlInitWithFlags(unsigned int flags) {
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    int result = 999;
    count = 0;
    if (file == NULL || fscanf(file, "%d", &result) != 1)
        return 999;
    if (result == -1) /* the driver hangs */
        for (;;)
            pause();
    Gpu *gpu = gpus;
    while (fscanf(file, "%d %d %llu %d %u %u %d %u %d %llu %31s %95[^\n]", &gpu->error, &gpu->ecc_code, &gpu->ecc,
                  &gpu->rows_code, &gpu->pending, &gpu->failed, &gpu->retired_code, &gpu->retired,
                  &gpu->throttle_code, &gpu->throttle, gpu->bus, gpu->name) == 12) {
        gpu++;
        count++;
    }
    fclose(file);
    return result;
}

int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned int *found) {
    *found = count;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    *device = &gpus[index];
    return gpus[index].error;
}

int nvmlDeviceGetName(void *device, char *name, unsigned int length) {
    strncpy(name, ((Gpu *)device)->name, length);
    return 0;
}

int nvmlDeviceGetPciInfo_v3(void *device, PciInfo *pci) {
    memset(pci, 0, sizeof *pci);
    strcpy(pci->busIdLegacy, "legacy");
    strcpy(pci->busId, ((Gpu *)device)->bus);
    return 0;
}

int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *errors) {
    if (type != 1 || counter != 0) /* uncorrected, volatile */
        return 2;
    *errors = ((Gpu *)device)->ecc;
    return ((Gpu *)device)->ecc_code;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending,
                              unsigned int *failed) {
    *corrected = *uncorrected = 7;
    *pending = ((Gpu *)device)->pending;
    *failed = ((Gpu *)device)->failed;
    return ((Gpu *)device)->rows_code;
}

int nvmlDeviceGetRetiredPagesPendingStatus(void *device, unsigned int *retired) {
    *retired = ((Gpu *)device)->retired;
    return ((Gpu *)device)->retired_code;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    *reasons = ((Gpu *)device)->throttle;
    return ((Gpu *)device)->throttle_code;
}
