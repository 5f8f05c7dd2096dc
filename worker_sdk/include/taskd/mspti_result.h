// MSPTI's results (TaskD contract §4.2), for the rank that gets them and the proxy that reports them. Plain C that is
// C++ as well.
#pragma once

enum MsptiResult {
  kMsptiOk = 0,
  kMsptiInvalidParameter = 1,
  kMsptiOtherSubscriber = 2,
  kMsptiMaxLimit = 3,  // of msptiActivityGetNextRecord: the end of the buffer
  kMsptiDeviceOffline = 4,
  kMsptiInner = 999,
};

// What a result means, for "not applied: <text> (<result>)". Never null.
static inline const char* MsptiErrorText(int result) {
  switch (result) {
    case kMsptiOk:
      return "applied";
    case kMsptiInvalidParameter:
      return "MSPTI refuses a parameter";
    case kMsptiOtherSubscriber:
      return "another profiler is subscribed to MSPTI";
    case kMsptiMaxLimit:
      return "MSPTI is at its limit";
    case kMsptiDeviceOffline:
      return "MSPTI says that the device is offline";
    case kMsptiInner:
      return "MSPTI has an internal error";
    default:
      return "MSPTI failed";
  }
}
