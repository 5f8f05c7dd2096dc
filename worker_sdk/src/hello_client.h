// The one thread of the library: hands the segment to the node's proxy, waits until that proxy is gone, and looks for
// the next one. Marks never wait for it.
#pragma once

namespace taskd::worker {

// Starts the thread; one that runs already sends its hello again with the present identity. Under the lock. False: no
// thread could be started.
bool StartHelloClient();

// A proxy holds the segment. Any thread.
bool IsAttached();

// In a forked child: forgets the thread, closes the parent's connection.
void ForgetHelloClient();

}  // namespace taskd::worker
