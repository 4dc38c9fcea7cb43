// The baseline of main.mjs: the same batches over one TCP connection, without UCX, framing or checks. Each of the two
// processes has one thread, which sends and receives when poll(2) reports that it can.
//
//   sockets ADDRESS PORT RANK BYTES ROUNDS     rank 0 listens at ADDRESS; prints the seconds of each round
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

[[noreturn]] void fail(const char* what) {
  perror(what);
  exit(1);
}

int listenAndAccept(const sockaddr_in& address) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address)) fail("bind");
  if (listen(listener, 1)) fail("listen");
  const int fd = accept(listener, nullptr, nullptr);
  if (fd < 0) fail("accept");
  close(listener);
  return fd;
}

int connectTo(const sockaddr_in& address) {
  for (int attempt = 0; attempt < 500; attempt++) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
    close(fd);
    usleep(10'000);
  }
  fail("connect");
}

/// Sends all of `out` and fills `in`.
void exchange(int fd, const std::vector<char>& out, std::vector<char>& in) {
  size_t sentBytes = 0, receivedBytes = 0;
  while (sentBytes < out.size() || receivedBytes < in.size()) {
    const int events = (sentBytes < out.size() ? POLLOUT : 0) | (receivedBytes < in.size() ? POLLIN : 0);
    pollfd poller{fd, static_cast<short>(events), 0};
    if (poll(&poller, 1, 10'000) <= 0) fail("poll");
    if (poller.revents & POLLIN) {
      const ssize_t count = recv(fd, in.data() + receivedBytes, in.size() - receivedBytes, 0);
      if (count == 0 || (count < 0 && errno != EAGAIN)) fail("recv");
      if (count > 0) receivedBytes += count;
    }
    if (poller.revents & POLLOUT) {
      const ssize_t count = send(fd, out.data() + sentBytes, out.size() - sentBytes, MSG_NOSIGNAL);
      if (count < 0 && errno != EAGAIN) fail("send");
      if (count > 0) sentBytes += count;
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) return fputs("sockets ADDRESS PORT RANK BYTES ROUNDS\n", stderr), 2;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, arguments[1], &address.sin_addr);
  address.sin_port = htons(static_cast<uint16_t>(atoi(arguments[2])));
  const int fd = atoi(arguments[3]) == 0 ? listenAndAccept(address) : connectTo(address);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const std::vector<char> out(strtoull(arguments[4], nullptr, 10), 1);
  std::vector<char> in(out.size()), word(1);
  for (int round = 0; round < atoi(arguments[5]); round++) {
    exchange(fd, std::vector<char>(1, 1), word);  // both processes are ready
    const auto begin = std::chrono::steady_clock::now();
    exchange(fd, out, in);
    printf("%.6f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  close(fd);
}
