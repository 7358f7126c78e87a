"""Declarations of the system calls that the reactor kernel makes; Linux only."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "sys/uio.h" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "sys/socket.h" nogil:
    ctypedef uint32_t socklen_t
    cdef struct sockaddr:
        uint16_t sa_family
    cdef struct sockaddr_storage:
        uint16_t ss_family
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    cdef struct linger:
        int l_onoff
        int l_linger
    int socket(int, int, int)
    int bind(int, const sockaddr *, socklen_t)
    int connect(int, const sockaddr *, socklen_t)
    int accept4(int, sockaddr *, socklen_t *, int)
    ssize_t recv(int, void *, size_t, int)
    ssize_t send_bytes "send"(int, const void *, size_t, int)
    ssize_t sendmsg(int, const msghdr *, int)
    int shutdown(int, int)
    int setsockopt(int, int, int, const void *, socklen_t)
    int getsockopt(int, int, int, void *, socklen_t *)
    int AF_INET, AF_INET6, SOCK_STREAM, SOCK_NONBLOCK, SOCK_CLOEXEC
    int SOL_SOCKET, SO_ERROR, SO_KEEPALIVE, SO_LINGER, SHUT_RD, SHUT_RDWR, SHUT_WR, MSG_NOSIGNAL
    int MSG_DONTWAIT

cdef extern from "netinet/in.h" nogil:
    cdef struct in_addr:
        uint32_t s_addr
    cdef struct in6_addr:
        uint8_t s6_addr[16]
    cdef struct sockaddr_in:
        uint16_t sin_family
        uint16_t sin_port
        in_addr sin_addr
    cdef struct sockaddr_in6:
        uint16_t sin6_family
        uint16_t sin6_port
        in6_addr sin6_addr
    int IPPROTO_TCP, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT

cdef extern from "netinet/tcp.h" nogil:
    cdef struct tcp_info:
        uint32_t tcpi_last_data_recv
    int TCP_INFO
    int TCP_NODELAY

cdef extern from "arpa/inet.h" nogil:
    uint16_t htons(uint16_t)
    uint16_t ntohs(uint16_t)
    const char *inet_ntop(int, const void *, char *, socklen_t)
    int inet_pton(int, const char *, void *)

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event *)
    int epoll_wait(int, epoll_event *, int, int)
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD
    uint32_t EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP

cdef extern from "sys/ioctl.h" nogil:
    int ioctl(int, unsigned long, ...)
    int TIOCOUTQ

cdef extern from "unistd.h" nogil:
    int close_descriptor "close"(int)
